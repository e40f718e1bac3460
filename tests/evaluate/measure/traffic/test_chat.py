"""Messages with roles: logs of the chat API, and data sets of the same form."""

from pathlib import Path
from typing import Any

import pytest

from conf.errors import QuantlineError
from evaluate.measure.traffic.conversation import Passage, Turn
from evaluate.measure.traffic.reader import read_conversations
from tests.evaluate.measure.traffic.files import lines


def said(*texts: str) -> list[dict[str, str]]:
    """Messages of a user and an assistant, after a system prompt."""
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]
    return [{"role": "system", "content": "You"}, *messages]


def turn(answer: Passage | None, *prompt: str) -> Turn:
    return Turn(tuple(Passage(text) for text in prompt), answer)


THOUGHT = {"role": "assistant", "content": "Hello", "reasoning_content": "Hm. "}


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"messages": said("Hi", "Hello")}, [turn(Passage("Hello"), "You", "Hi")]),
        (
            {"messages": said("Hi", "Hello", "And?"), "timestamp": 2.5, "model": "m"},
            [turn(Passage("Hello"), "You", "Hi"), turn(None, "And?")],
        ),
        ({"messages": said("Hi"), "output_tokens": 7}, [turn(Passage(tokens=7), "You", "Hi")]),
        ({"messages": said("Hi"), "response": "Hello"}, [turn(Passage("Hello"), "You", "Hi")]),
        (
            {
                "messages": said("Hi"),
                "response": {"choices": [{"message": {"role": "assistant", "content": "Hello"}}]},
            },
            [turn(Passage("Hello"), "You", "Hi")],
        ),
        (
            {
                "conversation": said("Hi")[1:],
                "response": {
                    "choices": [{"message": {"role": "assistant", "content": "Hello"}}],
                    "usage": {"completion_tokens": 9},
                },
            },
            [turn(Passage(tokens=9), "Hi")],
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
            [turn(None, "Hi")],
        ),
        (
            {"messages": said("Hi", "Hello", "And?"), "output_tokens": 7},
            [turn(Passage(tokens=7), "You", "Hi", "Hello", "And?")],
        ),
        (
            {"messages": said("Hi", "Hello", "And?"), "usage": {"completion_tokens": 7}},
            [turn(Passage(tokens=7), "You", "Hi", "Hello", "And?")],
        ),
        *(  # without the answer's length they do not make it one call
            (
                {"messages": said("Hi", "Hello", "And?"), "usage": usage},
                [turn(Passage("Hello"), "You", "Hi"), turn(None, "And?")],
            )
            for usage in ({}, {"total_tokens": 9}, {"prompt_tokens": 9, "output_tokens": None})
        ),
        (
            {"messages": said("Hi", "Hello"), "usage": {"completion_tokens": 0}},
            [turn(Passage("Hello"), "You", "Hi")],
        ),
        (
            {"messages": said("Hi"), "usage": {"completion_tokens": 0}, "response": "Hello"},
            [turn(Passage("Hello"), "You", "Hi")],
        ),
        (
            {"conversations": said("Hi", "Hello"), "usage": {"total_tokens": 9}},
            [turn(Passage("Hello"), "You", "Hi")],
        ),
        (
            {"messages": [*said("Hi"), THOUGHT | {"reasoning_details": [{"text": "Hm. "}]}]},
            [turn(Passage("Hm. Hello"), "You", "Hi")],
        ),
        (
            {"messages": said("Hi"), "usage": {"output_tokens": 7}, "response": "Hello"},
            [turn(Passage(tokens=7), "You", "Hi")],
        ),
        (
            {"messages": said("Hi", "Hello", "And?"), "system": "S", "response": "Well"},
            [turn(Passage("Well"), "S", "You", "Hi", "Hello", "And?")],
        ),
        (
            {"messages": said("Hi"), "response": "Hello", "output_tokens": 7},
            [turn(Passage(tokens=7), "You", "Hi")],
        ),
        (
            {"messages": said("Hi"), "response": {"choices": [{"message": THOUGHT}]}},
            [turn(Passage("Hm. Hello"), "You", "Hi")],
        ),
        ({"messages": [*said("Hi"), THOUGHT]}, [turn(Passage("Hm. Hello"), "You", "Hi")]),
        (
            {"messages": [*said("Hi"), THOUGHT | {"reasoning": "Hm. "}]},
            [turn(Passage("Hm. Hello"), "You", "Hi")],
        ),
        ({"conversations": [*said("Hi"), THOUGHT]}, [turn(Passage("Hm. Hello"), "You", "Hi")]),
        (
            {"messages": [*said("Hi"), {"role": "assistant", "refusal": "No"}]},
            [turn(Passage("No"), "You", "Hi")],
        ),
        (
            {"conversations": said("Hi", "Hello", "unanswered")},
            [turn(Passage("Hello"), "You", "Hi")],
        ),
    ],
)
def test_messages_with_roles_are_read(
    tmp_path: Path, record: dict[str, Any], expected: list[Turn]
) -> None:
    (conversation,) = read_conversations(lines(tmp_path / "t.jsonl", record))
    assert list(conversation.turns) == expected
    assert conversation.arrival_s == record.get("timestamp")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"messages": said("Hi"), "tools": [{"a": 1}]}, "chat does not read tools, which looks"),
        ({"messages": said("Hi"), "max_tokens": 9}, "no output_tokens, but max_tokens: rename it"),
        ({"messages": said("Hi", "Hello"), "output_tokens": 9}, "remove it, or output_tokens"),
        (
            {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": "a"}]}]},
            "a message has tool_calls, which is not read",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "only texts are read, not a part of the type image_url",
        ),
        ({"messages": said()}, None),
        (
            {"messages": said("Hi", "Hello"), "usage": {"completion_tokens": 9}},
            "remove it, or usag",
        ),
        (
            {"messages": said("Hi"), "output_tokens": 7, "usage": {"completion_tokens": 8}},
            "the answer has several lengths (output_tokens 7, usage.completion_tokens 8): keep",
        ),
        (
            {"conversations": said("Hi", "Hello", "And?"), "output_tokens": 7},
            "has output_tokens, as a logged call has: rename conversations to messages",
        ),
        (
            {"messages": [*said("Hi"), THOUGHT, *said("And?")]},
            "a message before the last answer has reasoning_content",
        ),
        (
            {"messages": [*said("Hi"), THOUGHT, *said("And?")], "output_tokens": 7},
            "a message before the last answer has reasoning_content",
        ),
        (
            {"messages": [*said("Hi"), THOUGHT | {"reasoning": "Other"}]},
            "a message has two texts, reasoning_content and reasoning: keep one",
        ),
        (
            {"conversations": [*said("Hi"), THOUGHT | {"tool_calls": [{"id": "a"}]}]},
            "a message has tool_calls, which is not read",
        ),
        (
            {"messages": [*said("Hi"), {"role": "assistant", "content": "A", "thinking": "Hm"}]},
            "the format chat does not read messages.thinking, which looks like a part of an answer",
        ),
        (
            {"conversations": [{"from": "gpt", "value": "A", "toolCalls": [{"id": "a"}]}]},
            "the format sharegpt does not read conversations.toolCalls, which looks like a part",
        ),
        ({"conversations": [{"role": "user"}]}, "either from and value, or role and content"),
    ],
)
def test_messages_that_would_be_sent_otherwise_are_refused(
    tmp_path: Path, record: dict[str, Any], message: str | None
) -> None:
    path = lines(tmp_path / "t.jsonl", record)
    if message is None:
        (conversation,) = read_conversations(path)
        assert conversation.turns == (turn(None, "You"),)
        return
    with pytest.raises(QuantlineError) as error:
        read_conversations(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_other_texts_of_messages_are_named_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    beside = {"category": "chat", "weight": 1, "statusHistory": [{"done": True}], "text": "Hi"}
    messages = [message | beside for message in said("Hi", "Hello")]
    path = lines(tmp_path / "t.jsonl", {"messages": messages, "tool_call_id": "a"})
    read_conversations(path)
    assert capfd.readouterr().err == (
        f"{path}: texts that the format chat does not read: messages.category, "
        "messages.statusHistory, messages.text\n"
    )


def test_a_call_without_tokens_in_its_answer_is_left_out(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    failed = {"messages": said("Hi"), "usage": {"completion_tokens": 0}}
    empty = {
        "messages": said("Hi"),
        "response": {
            "choices": [{"message": {"role": "assistant", "content": None}}],
            "usage": {"completion_tokens": 0},
        },
    }
    good = {"messages": said("Hi"), "usage": {"completion_tokens": 5}}
    path = lines(tmp_path / "t.jsonl", failed, good, empty)
    (conversation,) = read_conversations(path)
    assert conversation.turns == (turn(Passage(tokens=5), "You", "Hi"),)
    assert "2 of 3 records have no answer: left out" in capfd.readouterr().err
