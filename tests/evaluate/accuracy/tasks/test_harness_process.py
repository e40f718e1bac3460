"""The script in the harness's own interpreter cannot import our messages: both must agree."""

import json
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest

from evaluate.accuracy.tasks import events, harness_process
from evaluate.accuracy.tasks.harness import OWN_INTERPRETER, SCRIPT

# Runs the client in the harness's interpreter with a server that is made up: it knows the
# log-probabilities of three tokens after a context, and the client's own way gives -9.
CLIENT = """
import json, sys
sys.path.insert(0, sys.argv[1])
import harness_process
Client = harness_process._model_class()
Base = Client.__mro__[1]
told, scored = [], []

async def answer(self, contexts, keys, **options):
    if REFUSES:
        raise ValueError("fewer, please")
    told.extend(contexts)
    tops = [{f"token_id:{t}": -t / 10 - c[0] for t in (1, 2, 3)} for c in contexts]
    return [
        Client.parse_generations({"choices": [{"index": 0, "logprobs": {"top_logprobs": [top]}}]})
        for top in tops
    ]

def scored_by_harness(self, requests, **options):
    scored.extend(list(request[1] + request[2]) for request in requests)
    return [(-9.0, False) for _ in requests]

Client.get_batched_requests, Base._loglikelihood_tokens = answer, scored_by_harness
client = Client.__new__(Client)
client.max_length = 4
requests = [
    ("", [5, 6], [2]), ("", [7], [1]), ("", [5, 6], [1]), ("", [5, 6], [4]), ("", [7], [2, 3]),
    ("", [0, 1, 2, 3, 8], [3]), ("", [0, 1, 2, 3, 8], [1]), ("", [5, 6], [1]),
]
answers = client._loglikelihood_tokens(requests)
print(json.dumps([answers, told, scored]))
"""


def test_the_request_has_the_same_fields_on_both_sides() -> None:
    ours = [field.name for field in fields(events.AskTask)]
    theirs = [field.name for field in fields(harness_process.AskTask)]
    assert ours == theirs


def test_scores_are_the_numbers_of_a_metric_and_filter() -> None:
    results = {
        "alias": "gsm8k",
        "sample_len": 8,
        "acc,none": 0.5,
        "acc_stderr,none": 0.1,
        "exact_match,strict": 1,
        "note,none": "N/A",
    }
    assert harness_process._scores(results) == {"acc,none": 0.5, "exact_match,strict": 1}


def test_contexts_are_shared_by_answers_of_one_token() -> None:
    question, other = [1, 2, 3], [4, 5]
    requests = [(question, [7]), (other, [7]), (question, [8]), (question, [7, 8]), (other, [9])]
    assert harness_process.shared_contexts(requests, 8) == {(1, 2, 3): [0, 2], (4, 5): [1, 4]}
    # One answer to a context gains nothing; a long context loses its beginning.
    assert harness_process.shared_contexts([(question, [7])], 8) == {}
    assert harness_process.shared_contexts([(question, [7]), (question, [8])], 3) == {
        (2, 3): [0, 1]
    }


@pytest.mark.parametrize("refuses", [False, True], ids=["tells", "refuses"])
def test_answers_of_one_token_are_asked_for_once(refuses: bool) -> None:
    if not OWN_INTERPRETER.is_file():
        pytest.skip("the harness is not installed (make setup-lm-eval)")
    code = CLIENT.replace("REFUSES", str(refuses))
    command = [str(OWN_INTERPRETER), "-P", "-c", code, str(Path(SCRIPT).parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answers, told, scored = json.loads(done.stdout.splitlines()[-1])
    harness = [-9.0, False]
    if refuses:
        assert answers == [harness] * 8
        assert "fewer, please" in done.stderr
        return
    # Answers keep their places; the likeliest one is greedy; what the server did not tell, answers
    # of two tokens, and contexts with one answer are the harness's.
    assert told == [[5, 6], [2, 3, 8]], "a long context loses its beginning"
    assert answers == [
        [-5.2, False], harness, [-5.1, True], harness, harness,
        [-2.3, False], [-2.1, True], [-5.1, True],
    ]  # fmt: skip
    assert scored == [[7, 1], [5, 6, 4], [7, 2, 3]]
