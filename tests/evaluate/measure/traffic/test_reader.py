"""Files of traffic: every format, and what is wrong with a bad file, in one line."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from conf.errors import QuantlineError
from evaluate.measure.traffic.conversation import Conversation, Passage, Turn
from evaluate.measure.traffic.reader import read_conversations
from tests.evaluate.measure.traffic.files import PLAIN, chat, lines, one_turn


def blocks(count: int, tokens: int, *rest: Passage) -> Conversation:
    """A prompt of hashed blocks and a rest, with an answer of three tokens."""
    full = [Passage(tokens=tokens, seed=f"block {name}") for name in range(count)]
    return Conversation((Turn((*full, *rest), Passage(tokens=3)),))


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"input_tokens": 7, "output_tokens": 3}, one_turn(Passage(tokens=7), 3)),
        ({"timestamp": 2, "text": "Hi", "output_tokens": 3}, one_turn(Passage("Hi"), 3, 2.0)),
        ({"prompt": "Hi", "output_tokens": 3}, one_turn(Passage("Hi"), 3)),
        ({"prompt": "Hi"}, one_turn(Passage("Hi"))),
        ({"input_tokens": 7.0, "output_tokens": 3.0}, one_turn(Passage(tokens=7), 3)),
        ({"prompt": "Hi", "output_tokens_count": 3.0}, one_turn(Passage("Hi"), 3)),
        *(  # numbers that are no length of the answer
            ({"prompt": "Hi"} | beside, one_turn(Passage("Hi")))
            for beside in (
                {"answer": 42},
                {"answers": 4},
                {"reply_count": 4},
                {"num_responses": 4},
                {"num_completions": 4},
                {"sampling_params": {"max_tokens": 512, "max_new_tokens": 9}},
                {"meta": {"call": {"usage": {"completion_tokens": 9}}}},
            )
        ),
        ({"prompt": "Hi", "output_tokens": None}, one_turn(Passage("Hi"))),
        ({"timestamp": 2, "text": "Hi"}, one_turn(Passage("Hi"), None, 2.0)),
        ({"input_tokens": 7}, one_turn(Passage(tokens=7))),
        (
            {"prompt": "Hi", "prompt_tokens_count": 9, "output_tokens_count": 3},
            one_turn(Passage("Hi"), 3),
        ),
        ({"text": "Hi", "completion_tokens_count": 3}, one_turn(Passage("Hi"), 3)),
        (
            {"text": "Hi", "completion_tokens_count": 3, "output_tokens_count": 3, "max_tokens": 9},
            one_turn(Passage("Hi"), 3),
        ),
        (
            {"prompt": "Hi", "output_cost": 3, "response_time": 2, "answer": "42", "output": 0.5},
            one_turn(Passage("Hi")),
        ),
        ({"timestamp": 2, "prompt": "Hi"}, one_turn(Passage("Hi"), None, 2.0)),
        (
            {"timestamp": 2, "prompt": "Hi", "output_tokens_count": 3},
            one_turn(Passage("Hi"), 3, 2.0),
        ),
        (
            {"timestamp": 2, **chat("Hi", "Hello")},
            Conversation((Turn((Passage("Hi"),), Passage("Hello")),), 2.0),
        ),
        ({"question": "Hi", "text": None, "output_tokens_count": 3}, one_turn(Passage("Hi"), 3)),
        ({"input": "Hi", "input_tokens_count": 9}, one_turn(Passage("Hi"))),
        (
            {"input": "Hi", "system_prompt": "You", "output_tokens_count": 3},
            Conversation((Turn((Passage("You"), Passage("Hi")), Passage(tokens=3)),)),
        ),
        (
            {
                "prompt_2": "C",
                "prompt_0": "A",
                "prompt-1": "B",
                "output_tokens_count_1": 4,
                "output_tokens_count": 3,
                "system_prompt": "S",
                "prompt_3": None,
                "prefix_1": "",
            },
            Conversation(
                (
                    Turn((Passage("S"), Passage("A")), Passage(tokens=3)),
                    Turn((Passage("B"),), Passage(tokens=4)),
                    Turn((Passage("C"),), None),
                )
            ),
        ),
        (
            {"text": "A", "text_1": "B"},
            Conversation((Turn((Passage("A"),), None), Turn((Passage("B"),), None))),
        ),
        (
            {"prompt": "Hi", "system_prompt": "You", "output_tokens": 3},
            Conversation((Turn((Passage("You"), Passage("Hi")), Passage(tokens=3)),)),
        ),
        (
            {"prompt": "Hi", "system": "You", "prefix": ""},
            Conversation((Turn((Passage("You"), Passage("Hi")), None),)),
        ),
        (
            {"text": "Hi", "prefix": "You", "output_tokens": 3, "request_id": "a"},
            Conversation((Turn((Passage("You"), Passage("Hi")), Passage(tokens=3)),)),
        ),
        (
            {**chat("Hi", "Hello"), "system": "You"},
            Conversation((Turn((Passage("You"), Passage("Hi")), Passage("Hello")),)),
        ),
        (
            {"input_tokens": 7, "shared": [{"block": 2, "tokens": 5}], "output_tokens": 3},
            Conversation(
                (Turn((Passage(tokens=5, seed="shared 2"), Passage(tokens=2)), Passage(tokens=3)),)
            ),
        ),
        (
            {"timestamp": 500, "input_length": 1030, "output_length": 3, "hash_ids": [8, 9, 4]},
            Conversation(
                (
                    Turn(
                        (
                            Passage(tokens=512, seed="block 8"),
                            Passage(tokens=512, seed="block 9"),
                            Passage(tokens=6, seed="block 4"),
                        ),
                        Passage(tokens=3),
                    ),
                ),
                0.5,
            ),
        ),
        (
            chat("Hi", "Hello", "And?", "Well", "unanswered"),
            Conversation(
                (
                    Turn((Passage("Hi"),), Passage("Hello")),
                    Turn((Passage("And?"),), Passage("Well")),
                )
            ),
        ),
    ],
)
def test_each_format_is_told_by_its_keys(
    tmp_path: Path, record: dict[str, Any], expected: Conversation
) -> None:
    assert read_conversations(lines(tmp_path / "t.jsonl", record)) == [expected]
    listed = tmp_path / "t.json"
    listed.write_text(json.dumps([record, record], indent=1))
    assert read_conversations(listed) == [expected, expected]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "t.jsonl: is empty"),
        ("\n \n", "t.jsonl: is empty"),
        ('{"input_tokens": 7, "outp', "t.jsonl:1: no JSON"),
        (json.dumps(PLAIN) + '\n{"input_tok', "t.jsonl:2: no JSON"),
        ("[1]", "record 1: holds no object, a JSON object is expected"),
        (f"[{json.dumps(PLAIN)}, {json.dumps(PLAIN)[:9]}", "record 2: no JSON"),
        (f"[{json.dumps(PLAIN)}", "record 2: the file is cut off"),
        (f"[{json.dumps(PLAIN)}]x", "t.jsonl: there is more after the end of the list"),
        (f"[{json.dumps(PLAIN)} {json.dumps(PLAIN)}]", "record 2: no JSON (there is no comma"),
        (f"[{json.dumps(PLAIN)},,{json.dumps(PLAIN)}]", "record 2: no JSON"),
        (f"[{json.dumps(PLAIN)},]", "record 2: no JSON"),
        ('[{"input_tokens": 7, "input_tokens": 8}]', "record 1: the key 'input_tokens' appears"),
        ("[" * 9999, "record 1: is nested too deeply"),
        (f'[{{"output_tokens": {"9" * 5000}}}]', "record 1: holds a number that is too large"),
        ('{"a": 1}', "t.jsonl:1: no known format has the keys a; traffic.format=NAME takes"),
        ('{"a\\nb": 1}', r"no known format has the keys a\nb; traffic.format=NAME takes"),
        (f'{{"{"k" * 10**6}": 1}}', f"no known format has the keys {'k' * 40}; traffic.format"),
        ('{"Prompt": "Hi"}', "; the nearest is vllm, with the key prompt"),
        ('{"input_length": 5, "out": 3}', "; the nearest is mooncake, with the key input_length"),
        ('{"question": "Hi", "answer": "No"}', "; the nearest is guidellm, with the key question"),
        ('{"prompt": "Hi", "max_tokens": 5}', "t.jsonl:1: there is no output_tokens, but max_tok"),
        ('{"input_tokens": 5, "output_len": "5"}', "there is no output_tokens, but output_len: re"),
        ('{"input": "Hi", "output_tokens_count": 0}', "output_tokens_count is 0"),
        (
            '{"instruction": "Add", "input": "1 2", "output_tokens_count": 3}',
            "t.jsonl:1: has input and instruction: keep the one that is sent",
        ),
        (
            '{"prompt": "Hi", "context": "x", "output_tokens_count": 3}',
            "has prompt and context: keep",
        ),
        ('{"prompt": "Hi", "system": "x", "prefix": "y"}', "has system and prefix: keep the one"),
        (
            '{"prompt": "Hi", "context": "x", "output_tokens": 3}',
            "t.jsonl:1: the format vllm does not read context, which looks like a text that is "
            "sent: move it into prompt, or remove it",
        ),
        ('{"prompt": "Hi", "tools": [{"type": "function"}]}', "vllm does not read tools, which"),
        ('{"text": "Hi", "chat_history": ["x"], "output_tokens": 3}', "move it into text, or"),
        (
            '{"input_tokens": 7, "system_prompt": "You", "output_tokens": 3}',
            "input_tokens counts the whole prompt: remove system_prompt",
        ),
        (
            '{"input_length": 7, "output_length": 3, "prompt": "Hi"}',
            "the format mooncake does not read prompt, which looks like a text that is sent: rem",
        ),
        (
            '{"input_tokens": 7, "shared": [{"block": 2, "tokens": 8}], "output_tokens": 3}',
            "t.jsonl:1: the blocks in shared have 8 tokens, more than input_tokens 7",
        ),
        ('{"text": "Hi", "shared": [{"block": 2, "tokens": 8}]}', "shared works only with input_t"),
        ('{"input_tokens": 7, "shared": [{"block": 2}]}', "there is no shared.0.tokens"),
        (
            '{"prompt_0": "A", "prompt_1": "B", "output_tokens_count_2": 3}',
            "there is output_tokens_c",
        ),
        ('{"prompt_0": "A", "prompt_1": 5}', "t.jsonl:1: prompt_1 is 5; should be a text"),
        ('{"prompt_0": "A", "prompt_1": "B", "text": "C"}', "has prompt and text: keep the one"),
        ('{"prompt_0": "A", "prompt_1": "B", "max_tokens_1": 3}', "but max_tokens_1: rename it"),
        ('{"input_tokens": "7", "output_tokens": 3}', "t.jsonl:1: input_tokens is '7'; should be"),
        ('{"input_tokens": -7, "output_tokens": 3}', "input_tokens is -7; should be greater"),
        ('{"input_tokens": 7, "output_tokens": 0}', "output_tokens is 0; should be greater"),
        ('{"input_tokens": 7, "output_tokens": 1e999}', "output_tokens is inf"),
        ('{"input_tokens": 7.5, "output_tokens": 3}', "input_tokens is 7.5"),
        ('{"output_tokens": 3}', "give either input_tokens or text"),
        ('{"input_tokens": 7, "input_tokens": 8, "output_tokens": 3}', "appears twice"),
        (
            '{"input_length": 600, "output_length": 1, "hash_ids": [1, 2, 3]}',
            "t.jsonl:1: the number of hash_ids, 3, does not fit input_length 600 with blocks of "
            "512 tokens; traffic.block_tokens=256 does",
        ),
        (
            f'{{"input_length": 521, "output_length": 1, "hash_ids": {list(range(33))}}}',
            "; traffic.block_tokens=16 does",
        ),
        (
            '{"input_length": 2, "output_length": 1, "hash_ids": [1, 2, 3]}',
            "; traffic.block_tokens sets the size of a block",
        ),
        ('{"conversations": [{"from": "human", "value": "Hi"}]}', "has no request with a prompt"),
        ('{"conversations": "Hi"}', "conversations is 'Hi'; should be a valid list"),
        ("\xff".encode("latin-1"), "is not UTF-8"),
        (
            '{"timestamp": 2, "input_tokens": 7, "output_tokens": 3}\n'
            '{"timestamp": 1, "input_tokens": 7, "output_tokens": 3}\n',
            "t.jsonl:2: its timestamp is before that of the request before it; sort the file",
        ),
        (  # the lines of the file count, not the requests
            '{"Timestamp": 5, "Request tokens": 7, "Response tokens": 0}\n'
            '{"Timestamp": 7, "Request tokens": 7, "Response tokens": 3}\n'
            '{"Timestamp": 6, "Request tokens": 7, "Response tokens": 3}\n',
            "t.jsonl:3: its timestamp is before that of",
        ),
        (
            '{"timestamp": 2, "input_tokens": 7, "output_tokens": 3}\n' + json.dumps(PLAIN),
            "t.jsonl:2: there is no timestamp; 1 of 2 requests have one, and all or none must",
        ),
        (
            '{"prompt": "Hi", "completion": 120}',
            "there is no output_tokens, but completion: rename",
        ),
        ('{"prompt": "Hi", "output": 120.0}', "there is no output_tokens, but output: rename it"),
        ('{"prompt": "Hi", "num_decode_tokens": 9}', "no output_tokens, but num_decode_tokens"),
        *(
            (f'{{"prompt": "Hi", "{key}": 9}}', f"there is no output_tokens, but {key}: rename it")
            for key in ("osl", "answer_len", "num_response_tokens", "reply_words", "output_chars")
        ),
        ('{"prompt": "Hi", "usage": {"output": 9}}', "there is no output_tokens, but usage.output"),
        ('{"prompt": "Hi", "decode": 9}', "there is no output_tokens, but decode: rename it"),
        ('{"prompt": "Hi", "outputSize": 9}', "there is no output_tokens, but outputSize: rename"),
        ('{"text": "Hi", "gen_len": 9}', "there is no output_tokens, but gen_len: rename it"),
        (
            '{"prompt": "Hi", "usage": {"completion_tokens": 9}}',
            "there is no output_tokens, but usage.completion_tokens: rename it",
        ),
        (
            '{"prompt": "Hi", "output_tokens_count": 3, "completion_tokens_count": 4}',
            "t.jsonl:1: the answer has several lengths (output_tokens_count 3, "
            "completion_tokens_count 4): keep the right one",
        ),
        (
            '{"prompt": "Hi", "output_tokens_count": 3, "output_tokens": 4}',
            "the format guidellm gives the answer 3 tokens, but output_tokens is 4: keep the rig",
        ),
        (
            '{"prompt_0": "Hi", "output_tokens_count": 3, "output_tokens_count_0": 4}',
            "the answer has several lengths (output_tokens_count 3, output_tokens_count_0 4)",
        ),
        ('{"timestamp": -1, "input_tokens": 7, "output_tokens": 3}', "timestamp is -1"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, content: str | bytes, message: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(QuantlineError) as error:
        read_conversations(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert error.value.exit_code == 2


def test_a_format_that_is_asked_for_is_held_to(tmp_path: Path) -> None:
    path = lines(tmp_path / "t.jsonl", {"prompt": "Hi", "output_tokens": 3})
    with pytest.raises(QuantlineError, match=r"t\.jsonl:1: there is no input_length"):
        read_conversations(path, "mooncake")
    with pytest.raises(QuantlineError, match="no output_tokens_count, but output_tokens: rename"):
        read_conversations(path, "guidellm")
    lines(path, {"question": "Hi"})
    assert read_conversations(path, "guidellm") == [one_turn(Passage("Hi"))]
    lines(path, {"answer": "Hi"})
    with pytest.raises(QuantlineError, match="there is no prompt; it is called one of prompt, tex"):
        read_conversations(path, "guidellm")


@pytest.mark.parametrize(
    ("length", "hashes", "expected"),
    [
        (40, 3, blocks(2, 16, Passage(tokens=8, seed="block 2"))),
        (40, 2, blocks(2, 16, Passage(tokens=8))),  # no hash of a block that is not full
        (32, 2, blocks(2, 16)),
        (40, 0, blocks(0, 16, Passage(tokens=40))),
    ],
)
def test_blocks_have_the_size_that_was_asked_for(
    tmp_path: Path, length: int, hashes: int, expected: Conversation
) -> None:
    record = {"input_length": length, "output_length": 3, "hash_ids": [*range(hashes)]}
    path = lines(tmp_path / "t.jsonl", record)
    assert read_conversations(path, block_tokens=16) == [expected]


def test_a_size_of_blocks_without_blocks_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = lines(tmp_path / "t.jsonl", {"input_length": 40, "output_length": 3})
    read_conversations(path, block_tokens=16)
    assert f"traffic.block_tokens has no effect: {path} has no hash_ids" in capfd.readouterr().err
    lines(path, {"input_length": 1200, "output_length": 3, "hash_ids": [1, 2, 3]})
    with pytest.raises(QuantlineError, match=r"of 16 tokens; traffic\.block_tokens=512 does"):
        read_conversations(path, block_tokens=16)
    lines(path, PLAIN)
    with pytest.raises(QuantlineError, match=r"block_tokens=16: works only with .* format plain"):
        read_conversations(path, block_tokens=16)


def test_other_texts_are_named_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    record = {"prompt": "Hi", "category": "chat", "request_id": "a", "temperature": 0.5}
    path = lines(tmp_path / "t.jsonl", record, record | {"answer": "Hello", "prompt_hash": "c"})
    read_conversations(path)
    assert capfd.readouterr().err == (
        f"{path}: texts that the format vllm does not read: answer, category, prompt_hash\n"
    )


@pytest.mark.parametrize("key", ["meta", "prompt", "timestamp", "usage", "output_tokens"])
@pytest.mark.parametrize("depth", [300, 500, 900, 5000])
@pytest.mark.parametrize("name", ["vllm", "guidellm", "chat", "sharegpt"])
def test_a_deeply_nested_record_is_read_or_refused(
    tmp_path: Path, key: str, depth: int, name: str
) -> None:
    path, nested = tmp_path / "t.jsonl", '{"a": ' * depth + "1" + "}" * depth
    record = {"prompt": "Hi", "messages": [], **chat("Hi", "Hello")}
    others = {name: value for name, value in record.items() if name != key}
    path.write_text(f'{json.dumps(others)[:-1]}, "{key}": {nested}}}\n')
    with contextlib.suppress(QuantlineError):
        read_conversations(path, name)
