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
