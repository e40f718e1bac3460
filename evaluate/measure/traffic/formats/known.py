"""The known formats, and which one a record has."""

import difflib
import re
from collections.abc import Iterable, Iterator

from pydantic import JsonValue

from conf.errors import QuantlineError, bad_input
from conf.files.json_files import JsonObject, shown
from evaluate.measure.traffic.formats import (
    azure,
    burstgpt,
    chat,
    guidellm,
    mooncake,
    plain,
    sharegpt,
    vllm,
)
from evaluate.measure.traffic.formats.base import TrafficFormat

# Of formats that fit a record equally well, the first one is taken.
FORMATS: dict[str, TrafficFormat] = {
    module.FORMAT.name: module.FORMAT
    for module in (sharegpt, chat, mooncake, azure, burstgpt, vllm, plain, guidellm)
}
MOST_KEYS, LONGEST_KEY = 8, 40
CLOSE = 0.7
# A number under such a key is the length of an answer, whatever the tool calls it.
LIKE_A_LENGTH = re.compile(
    r"(?!.*(input|prompt))"
    r"(?=.*(out|completion|answer|response|reply|generat|decode|reason|max|new|(?<![a-z])gen)).*(tok|len)",
    re.IGNORECASE,
)
_WORD = "words?|char(?:acter)?s?"
_COUNT = f"num|number|nr|no|n|count|total|size|max|min|new|of|{_WORD}"
_ANSWER = "outputs?|out|completions?|answers?|responses?|reply|generat(?:ed|ions?)|gen|decoded?|osl"
_SIZE = "size|total|max|min|new"
# So is one of words or characters, or under these mere names. A text there is the answer itself.
# Numbers under answer, reply_count or num_responses are no lengths.
LIKE_AN_ANSWER = re.compile(
    rf"(?=.*(?:{_WORD}))(?:(?:{_COUNT})[-_ .]?)*(?:{_ANSWER})(?:[-_ .]?(?:{_COUNT}|\d))*"
    rf"|(?:(?:{_SIZE})[-_ .]?)*(?:output|out|completion|decoded?|osl)(?:[-_ .]?(?:{_SIZE}|\d))*",
    re.IGNORECASE,
)
# In an object beside the prompt, such as sampling_params, this is a limit.
LIKE_A_LIMIT = re.compile(r".*(max|min|limit)", re.IGNORECASE)
# Names of this length in several tools.
LENGTHS = (
    *("output_tokens", "output_tokens_count", "output_length", "output_len"),
    *("completion_tokens", "completion_tokens_count", "num_decode_tokens"),
)


def format_of(content: JsonObject) -> TrafficFormat | None:
    """The format of a record: the one with most of its keys."""
    best, most = None, 0
    for kind in FORMATS.values():
        names = kind.names_in(content)
        for keys in kind.keys:
            if len(keys) > most and names.issuperset(keys):
                best, most = kind, len(keys)
    return best


def unknown_format(content: JsonObject, where: str) -> QuantlineError:
    """Why a record has no format."""
    found = ", ".join(shown_key(key) for key in list(content)[:MOST_KEYS]) or "none"
    return bad_input(
        f"{where}: no known format has the keys {found}; traffic.format=NAME takes "
        f"{', '.join(FORMATS)}{_nearest(content)}"
    )


def check_answer_key(kind: TrafficFormat, content: JsonObject, where: str) -> None:
    """Raises where a record without the length of its answer seems to have it under another key:
    another length would be drawn."""
    unread = {key: value for key, value in content.items() if not kind.reads(key)}
    key = next(_lengths(unread), None)
    if key is not None:
        raise bad_input(
            f"{where}: there is no {kind.answer_key}, but {key}: rename it if it is the length of "
            "the answer, else remove it"
        )


def check_lengths(kind: TrafficFormat, content: JsonObject, where: str, tokens: int) -> None:
    """Raises where a further key, of another tool, gives the answer another length."""
    for key in LENGTHS:
        value = content.get(key)
        if not kind.reads(key) and _is_length(value) and value != tokens:
            raise bad_input(
                f"{where}: the format {kind.name} gives the answer {tokens} tokens, but "
                f"{key} is {shown(value)}: keep the right one"
            )


def _lengths(content: JsonObject) -> Iterator[str]:
    """The keys of what seems to be the length of an answer, also in objects such as `usage`."""
    for key, value in content.items():
        if isinstance(value, dict):
            for inner, number in value.items():
                if _is_answer_length(inner, number) and not LIKE_A_LIMIT.match(inner[:LONGEST_KEY]):
                    yield f"{shown_key(key)}.{shown_key(inner)}"
        elif _is_answer_length(key, value):
            yield shown_key(key)


def _is_answer_length(key: str, value: JsonValue) -> bool:
    name = key[:LONGEST_KEY]
    if LIKE_A_LENGTH.match(name):
        return _is_length(value) or (isinstance(value, str) and value.isdigit())
    return _is_length(value) and LIKE_AN_ANSWER.fullmatch(name) is not None


def _is_length(value: JsonValue) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value >= 1 and value == int(value)


def _nearest(keys: Iterable[str]) -> str:
    """The format that has a key most like one of these; empty where none is."""
    best, ratio = "", CLOSE
    for key in keys:
        for kind in FORMATS.values():
            for field in kind.fields:
                likeness = difflib.SequenceMatcher(None, key[:LONGEST_KEY].lower(), field).ratio()
                if likeness > ratio:
                    best, ratio = f"; the nearest is {kind.name}, with the key {field}", likeness
    return best


def shown_key(key: str) -> str:
    """A key for a message."""
    return shown(key[:LONGEST_KEY])[1:-1]
