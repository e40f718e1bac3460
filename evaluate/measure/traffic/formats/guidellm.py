"""guidellm's data sets: a text, perhaps a system prompt before it, and token counts.

{"prompt": "What is a mutex?", "prompt_tokens_count": 5, "output_tokens_count": 120}
{"prompt_0": "Hi", "output_tokens_count_0": 9, "prompt_1": "And?", "output_tokens_count_1": 40}

guidellm finds columns by their names; these are the names of guidellm 0.8.1. Numbered columns are
the turns of a conversation.
"""

import re
from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict, JsonValue, TypeAdapter, ValidationError, model_validator

from conf.files.json_files import JsonObject, shown
from evaluate.measure.traffic.conversation import Conversation, Passage, Turn
from evaluate.measure.traffic.formats.base import (
    PREFIXES,
    Text,
    TimedRecord,
    Tokens,
    TrafficFormat,
    answer_of,
    only_length,
    whole,
)

PROMPTS = ("prompt", "text", "input", "instruction", "question", "context", "content")
OUTPUT_COUNTS = ("output_tokens_count", "completion_tokens_count")
COLUMN = re.compile(rf"({'|'.join((*PROMPTS, *PREFIXES, *OUTPUT_COUNTS))})(?:[-_](\d{{1,4}}))?")
UNNUMBERED = -1
NUMBERED = " numbered"  # no column ends like this
_TYPES: dict[str, tuple[TypeAdapter[Any], str]] = {
    **dict.fromkeys(PROMPTS, (TypeAdapter(Text), "a text")),
    **dict.fromkeys(PREFIXES, (TypeAdapter(str), "a text")),
    **dict.fromkeys(OUTPUT_COUNTS, (TypeAdapter(Tokens), "a number of tokens, above 0")),
}


@dataclass(frozen=True)
class _Column:
    """A column that holds something."""

    key: str
    name: str
    """The key without its number."""
    turn: int
    value: JsonValue


class GuidellmRecord(TimedRecord):
    """Counts of the prompt's tokens are not read: the model's own tokenizer counts."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)
    __pydantic_extra__: dict[str, JsonValue]

    @model_validator(mode="after")
    def _has_its_prompts(self) -> "GuidellmRecord":
        """guidellm takes the first of several names, whose order a line need not keep."""
        for column in self._columns((*PROMPTS, *PREFIXES, *OUTPUT_COUNTS)):
            _check_type(column)
        prompts = self._columns(PROMPTS)
        if not prompts:
            raise ValueError(f"there is no prompt; it is called one of {', '.join(PROMPTS)}")
        for choices in (PROMPTS, PREFIXES):
            names = [name for name in choices if self._columns((name,))]
            if len(names) > 1:
                raise ValueError(f"has {' and '.join(names)}: keep the one that is sent")
        turns = {column.turn for column in prompts} | {UNNUMBERED}
        for column in self._columns((*PREFIXES, *OUTPUT_COUNTS)):
            if column.turn not in turns:
                raise ValueError(f"there is {column.key}, but no prompt with this number")
        return self

    def turns(self) -> tuple[Turn, ...]:
        """A prompt without a number is the first one, and other columns without one are its."""
        prompts = sorted(self._columns(PROMPTS), key=lambda column: column.turn)
        return tuple(
            self._turn(prompt, (prompt.turn, UNNUMBERED) if place == 0 else (prompt.turn,))
            for place, prompt in enumerate(prompts)
        )

    def _turn(self, prompt: _Column, numbers: tuple[int, ...]) -> Turn:
        texts = [column for column in self._columns(PREFIXES) if column.turn in numbers]
        passages = [Passage(str(column.value)) for column in (*texts, prompt)]
        counts = {
            column.key: tokens
            for column in self._columns(OUTPUT_COUNTS)
            if column.turn in numbers and isinstance(tokens := whole(column.value), int)
        }
        return Turn(tuple(passages), answer_of(only_length(counts)))

    def _columns(self, names: tuple[str, ...]) -> list[_Column]:
        return [column for column in _columns(self.__pydantic_extra__) if column.name in names]


def _columns(content: JsonObject) -> list[_Column]:
    found = [(key, COLUMN.fullmatch(key)) for key in content]
    return [
        _Column(key, match[1], int(match[2] or UNNUMBERED), content[key])
        for key, match in found
        if match and content[key] is not None and content[key] != ""
    ]


def _check_type(column: _Column) -> None:
    kind, described = _TYPES[column.name]
    try:
        kind.validate_python(column.value, strict=True)
    except ValidationError as error:
        raise ValueError(f"{column.key} is {shown(column.value)}; should be {described}") from error


def names_in(content: JsonObject) -> set[str]:
    """The columns without their numbers, and a mark beside the prompts that have one."""
    columns = _columns(content)
    marks = {column.name + NUMBERED for column in columns if column.turn != UNNUMBERED}
    return {column.name for column in columns} | marks


def conversation(record: GuidellmRecord) -> Conversation:
    return Conversation(record.turns(), record.timestamp)


FORMAT = TrafficFormat(
    "guidellm",
    (
        *((prompt, count) for prompt in PROMPTS for count in OUTPUT_COUNTS),
        *((prompt, prompt + NUMBERED) for prompt in PROMPTS),
        ("input",),
    ),
    GuidellmRecord,
    conversation,
    answer_key="output_tokens_count",
    text_key="prompt",
    columns=(*PROMPTS, *PREFIXES, *OUTPUT_COUNTS),
    text_columns=(*PROMPTS, *PREFIXES),
    column=COLUMN,
    names_in=names_in,
)
