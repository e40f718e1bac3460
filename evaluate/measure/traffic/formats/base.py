"""What a format of traffic files states."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from conf.files.json_files import JsonObject
from conf.schema.ranges import TOKENS_MOST
from conf.schema.traffic import SECONDS
from evaluate.measure.traffic.conversation import Conversation, Passage


def whole(value: JsonValue) -> JsonValue:
    """A whole number as an integer. pandas writes 80.0 in a column with gaps."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Tokens = Annotated[int, BeforeValidator(whole), Field(ge=1, le=TOKENS_MOST)]
MaybeTokens = Annotated[int, BeforeValidator(whole), Field(ge=0, le=TOKENS_MOST)]
"""Of an answer; a request that failed has none."""
Text = Annotated[str, StringConstraints(min_length=1)]
PREFIXES = ("system_prompt", "system", "prefix")
Moment = Annotated[float, Field(ge=0, le=1e20)]


class TrafficRecord(BaseModel):
    """One record of a file. Strict: a string is never read as a number."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class TimedRecord(TrafficRecord):
    """A record that may say when its request arrived."""

    timestamp: Moment | None = None
    """Seconds."""


class PrefixedRecord(TimedRecord):
    """A record with a text that may have another one before it, by guidellm's names."""

    system_prompt: str | None = None
    system: str | None = None
    prefix: str | None = None

    @model_validator(mode="after")
    def _has_one_prefix(self) -> "PrefixedRecord":
        check_single(self, PREFIXES)
        return self

    @property
    def prefixes(self) -> tuple[Passage, ...]:
        return tuple(Passage(getattr(self, name)) for name in given(self, PREFIXES))


@dataclass(frozen=True)
class TrafficFormat:
    """How records of one format are told from others, and read."""

    name: str
    keys: tuple[tuple[str, ...], ...]
    """A record that has all keys of one of these groups may be of this format."""
    record: type[TrafficRecord]
    conversation: Callable[[Any], Conversation | None]
    """The conversation of a valid record; None for one without a question and an answer. Raises
    ValueError for one that contradicts itself."""
    unit: str = SECONDS
    """Of its timestamps."""
    time_key: str = "timestamp"
    has_dates: bool = False
    """Whether its timestamps are dates, which have no unit."""
    answer_key: str = ""
    """The key of an answer's length, where a record may lack it."""
    text_key: str = ""
    """The key of the text that is sent; empty where there is no single one."""
    columns: tuple[str, ...] = ()
    """Keys that it reads beside the record's fields."""
    text_columns: tuple[str, ...] = ()
    """Those of them that are texts."""
    column: re.Pattern[str] | None = None
    """Describes these keys, where they may have a number."""
    names_in: Callable[[JsonObject], set[str]] = set
    """The keys of a record, as `keys` has them."""
    lists: tuple[str, ...] = ()
    """The keys of its lists of messages."""
    message: type[TrafficRecord] = TrafficRecord
    """One of these messages."""

    @property
    def fields(self) -> list[str]:
        """The keys that it reads."""
        return [*keys_of(self.record), *self.columns]

    def reads(self, key: str) -> bool:
        if key in keys_of(self.record) or key in self.columns:
            return True
        return self.column is not None and self.column.fullmatch(key) is not None

    def reads_text(self, key: str) -> bool:
        """Whether the key's value may be a text."""
        return self._name_of(key) in (*self.text_columns, *_text_keys(self.record))

    def reads_prompt(self, key: str) -> bool:
        """Whether the key's value is a text that a request cannot lack."""
        name = self._name_of(key)
        return bool(self.text_key) and self.reads_text(key) and name not in PREFIXES

    def _name_of(self, key: str) -> str:
        """The key without its number."""
        match = self.column.fullmatch(key) if self.column else None
        return match[1] if match else key


@cache
def keys_of(record: type[TrafficRecord]) -> tuple[str, ...]:
    """The keys that the fields of a record have in a file."""
    return tuple(info.alias or name for name, info in record.model_fields.items())


@cache
def _text_keys(record: type[TrafficRecord]) -> tuple[str, ...]:
    """Those of the keys whose fields take a text."""
    fields = zip(keys_of(record), record.model_fields.values(), strict=True)
    return tuple(key for key, info in fields if _takes_text(info.annotation))


def _takes_text(annotation: Any) -> bool:
    try:
        TypeAdapter(annotation).validate_python("text", strict=True)
    except ValidationError:
        return False
    return True


def given(record: TrafficRecord, columns: tuple[str, ...]) -> list[str]:
    """Those of the columns that hold something."""
    return [name for name in columns if getattr(record, name)]


def check_single(record: TrafficRecord, columns: tuple[str, ...]) -> None:
    """Raises where several of the columns hold a text: one of them would be dropped."""
    names = given(record, columns)
    if len(names) > 1:
        raise ValueError(f"has {' and '.join(names)}: keep the one that is sent")


def only_length(lengths: dict[str, int]) -> int | None:
    """The one length of an answer, by the keys that give it. Raises where they differ."""
    if len(set(lengths.values())) > 1:
        given_lengths = ", ".join(f"{key} {tokens}" for key, tokens in lengths.items())
        raise ValueError(f"the answer has several lengths ({given_lengths}): keep the right one")
    return next(iter(lengths.values()), None)


def answer_of(tokens: int | None) -> Passage | None:
    """The answer of a record that may say how long it is."""
    return None if tokens is None else Passage(tokens=tokens)
