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
NAMES = re.compile(r".*ids?$", re.IGNORECASE)


def unread_texts(kind: TrafficFormat, content: JsonObject, where: str) -> list[str]:
    """The keys of further texts, names of records left out. Raises for one that looks like a part
    of the prompt."""
    keys = _unread(kind, content, kind.reads, where)
    fields = keys_of(kind.message)
    for name in kind.lists:
        messages = content.get(name)
        for message in messages if isinstance(messages, list) else []:
            assert isinstance(message, dict)  # as the format's record has it
            keys += _unread(kind, message, fields.__contains__, where, f"{name}.")
    return sorted(set(keys))


def _unread(
    kind: TrafficFormat,
    content: JsonObject,
    reads: Callable[[str], bool],
    where: str,
    place: str = "",
) -> list[str]:
    keys = []
    for key, value in content.items():
        name = key[:LONGEST_KEY]
        if reads(key) or not isinstance(value, str | list | dict):
            continue
        if not value or NAMES.match(name):
            continue
        if LIKE_A_PROMPT.match(name):
            into = f"move it into {kind.text_key}, or remove it" if kind.text_key else "remove it"
            raise bad_input(
                f"{where}: the format {kind.name} does not read {place}{shown_key(key)}, which "
                f"looks like a text that is sent: {into}"
            )
        keys.append(place + key)
    return keys
