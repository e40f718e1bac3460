"""The known formats, and which one a record has."""

import difflib
import re
from collections.abc import Iterable

from conf.errors import bad_input
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
    r"(?!.*(input|prompt))(?=.*(out|completion|answer|response|generat|max|new)).*(tok|len)",
    re.IGNORECASE,
)


def format_of(content: JsonObject, where: str) -> TrafficFormat:
    """The format of a record: the one with most of its keys."""
    best, most = None, 0
    for kind in FORMATS.values():
        names = kind.names_in(content)
        for keys in kind.keys:
            if len(keys) > most and names.issuperset(keys):
                best, most = kind, len(keys)
    if best is not None:
        return best
    found = ", ".join(shown_key(key) for key in list(content)[:MOST_KEYS]) or "none"
    raise bad_input(
        f"{where}: no known format has the keys {found}; traffic.format=NAME takes "
        f"{', '.join(FORMATS)}{_nearest(content)}"
    )


def check_answer_key(kind: TrafficFormat, content: JsonObject, where: str) -> None:
    """Raises where a record without the length of its answer seems to have it under another key:
    another length would be drawn."""
    for key, value in content.items():
        if kind.reads(key):
            continue
        is_number = isinstance(value, int | float) or (isinstance(value, str) and value.isdigit())
        if is_number and LIKE_A_LENGTH.match(key[:LONGEST_KEY]):
            raise bad_input(
                f"{where}: there is no {kind.answer_key}, but {shown_key(key)}: rename it if it "
                "is the length of the answer, else remove it"
            )


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
