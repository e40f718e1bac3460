"""Transformers behind HTTP answers what the harness asks: scores of tokens, and continuations."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from conf.schema.load import EngineConfig
from conf.schema.model import ModelConfig
from evaluate.accuracy.tasks.transformers_server import TransformersServer
from evaluate.measure.engines import LoadRequest


@pytest.fixture(scope="module")
def server(tiny: tuple[ModelConfig, Path]) -> Iterator[TransformersServer]:
    load = LoadRequest(tiny[1], EngineConfig(kind="transformers"), 512, False, Path("/dev/null"))
    with closing(TransformersServer(load)) as started:
        yield started


def ask(server: TransformersServer, **body: Any) -> list[dict[str, Any]]:
    content = json.dumps({"model": server.name, "temperature": 0, **body}).encode()
    request = urllib.request.Request(f"{server.url}/v1/completions", content)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
        choices: list[dict[str, Any]] = json.load(answer)["choices"]
    return choices


def test_it_scores_every_token_and_says_which_one_is_most_likely(
    server: TransformersServer,
) -> None:
    prompt = server.engine.tokens_of("The file is opened for reading")
    greedy = prompt + server.engine.generate([prompt], 3)[0]
    (choice,) = ask(server, prompt=[greedy], echo=True, logprobs=1, max_tokens=1)
    scores, best = choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"]
    # The harness reads from the context's end up to the token that it did not send.
    assert len(scores) == len(best) == len(greedy) + 1
    chosen = server.engine.score_window(greedy, 1).chosen
    assert scores[len(prompt) : -1] == chosen[len(prompt) - 1 :]
    assert [max(top.values()) for top in best[len(prompt) : -1]] == scores[len(prompt) : -1]
    (other,) = ask(server, prompt=[[*prompt, greedy[0]]], echo=True, logprobs=1, max_tokens=1)
    assert max(other["logprobs"]["top_logprobs"][-2].values()) > min(scores[1:-1])


def test_it_tells_the_likeliest_next_tokens(server: TransformersServer) -> None:
    prompt = server.engine.tokens_of("The file is opened for reading")
    (choice,) = ask(server, prompt=[prompt], logprobs=5, max_tokens=1)
    (top,) = choice["logprobs"]["top_logprobs"]
    assert len(top) == 5
    for name, score in top.items():
        token = int(name.removeprefix("token_id:"))
        (echoed,) = ask(server, prompt=[[*prompt, token]], echo=True, logprobs=1, max_tokens=1)
        assert echoed["logprobs"]["token_logprobs"][-2] == pytest.approx(score, abs=1e-4)


def test_it_continues_up_to_a_stop_text(server: TransformersServer) -> None:
    prompts = [server.engine.tokens_of(text) for text in ("The file is", "def ")]
    choices = ask(server, prompt=prompts, max_tokens=24, stop=[""])
    tokens = server.engine.generate(prompts, 24)
    decode = server.engine.tokenizer.decode
    texts = [decode(found, skip_special_tokens=True) for found in tokens]
    assert [choice["text"] for choice in choices] == texts
    assert [choice["index"] for choice in choices] == [0, 1]
    stop = texts[0][len(texts[0]) // 2 :][:4]  # whatever this machine's training made it say
    (short,) = ask(server, prompt=prompts[0], max_tokens=24, stop=["no such text", stop])
    assert short["text"] == texts[0].partition(stop)[0]


def test_a_bad_request_is_an_answer(server: TransformersServer) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(server, prompt=[[1, 2]])
    assert caught.value.code == 400
    assert "max_tokens" in caught.value.read().decode()
