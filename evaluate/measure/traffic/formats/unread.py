"""Texts of a record that its format does not read. A prompt without them is another prompt."""

import re
from collections.abc import Callable

from conf.errors import bad_input
from conf.files.json_files import JsonObject
from evaluate.measure.traffic.formats.base import TrafficFormat, keys_of
from evaluate.measure.traffic.formats.known import LONGEST_KEY, shown_key

# A text under such a key is very likely sent, whatever the tool calls it.
LIKE_A_PROMPT = re.compile(
    r"(?!.*(ids?|tokens?|len|length|count|hash|type|name|lang|language|source|version|fingerprint)$)"
    r".*(prompt|system|instruct|input|question|query|context|content|messages?$|prefix|suffix|text|"
    r"history|conversation|document|passage|tools?$|functions?$)",
    re.IGNORECASE,
)
# In a message, other keys are what a program shows beside it. These belong to the answer.
LIKE_A_PART = re.compile(
    r"(.*[-_ ])?(reasoning|thinking|thoughts?)([-_ ]?(content|text|details?))?"
    r"|tool[-_ ]?(calls?|uses?|invocations?)|function[-_ ]?calls?",
    re.IGNORECASE,
)
READ_REASONING = ("reasoning_content", "reasoning")
NAMES = re.compile(r".*ids?$", re.IGNORECASE)


def unread_texts(kind: TrafficFormat, content: JsonObject, where: str) -> list[str]:
    """The keys of further texts, names of records left out. Raises for one that looks like a part
    of the prompt, and for parts of an answer in a message."""
    keys = _unread(content, kind.reads)
    for key in keys:
        if LIKE_A_PROMPT.match(key[:LONGEST_KEY]):
            into = f"move it into {kind.text_key}, or remove it" if kind.text_key else "remove it"
            raise bad_input(
                f"{where}: the format {kind.name} does not read {shown_key(key)}, which looks like "
                f"a text that is sent: {into}"
            )
    fields = keys_of(kind.message)
    for name in kind.lists:
        messages = content.get(name)
        for message in messages if isinstance(messages, list) else []:
            assert isinstance(message, dict)  # as the format's record has it
            beside = _unread(message, fields.__contains__)
            _check_parts(message, beside, f"{where}: the format {kind.name}", name)
            keys += [f"{name}.{key}" for key in beside]
    return sorted(set(keys))


def _unread(content: JsonObject, reads: Callable[[str], bool]) -> list[str]:
    return [
        key
        for key, value in content.items()
        if isinstance(value, str | list | dict) and value and not reads(key) and not _is_name(key)
    ]


def _is_name(key: str) -> bool:
    return NAMES.match(key[:LONGEST_KEY]) is not None


def _check_parts(message: JsonObject, keys: list[str], where: str, name: str) -> None:
    """Raises for reasoning or calls of tools under keys that are not read. Beside reasoning that is
    read, they repeat it."""
    if any(message.get(key) for key in READ_REASONING):
        return
    for key in keys:
        if LIKE_A_PART.fullmatch(key[:LONGEST_KEY]):
            raise bad_input(
                f"{where} does not read {name}.{shown_key(key)}, which looks like a part of an "
                "answer: remove it"
            )
