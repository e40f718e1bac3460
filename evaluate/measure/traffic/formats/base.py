"""What a format of traffic files states."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from conf.files.json_files import JsonObject
from conf.schema.ranges import TOKENS_MOST
from conf.schema.traffic import SECONDS
from evaluate.measure.traffic.conversation import Conversation, Passage

Tokens = Annotated[int, Field(ge=1, le=TOKENS_MOST)]
Text = Annotated[str, StringConstraints(min_length=1)]
PREFIXES = ("system_prompt", "system", "prefix")
Moment = Annotated[float, Field(ge=0, le=1e20)]


class TrafficRecord(BaseModel):
    """One record of a file. Strict: a string is never read as a number."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class PrefixedRecord(TrafficRecord):
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
    has_dates: bool = False
    """Whether its timestamps are dates, which have no unit."""
    answer_key: str = ""
    """The key of an answer's length, where a record may lack it."""
    text_key: str = ""
    """The key of the text that is sent; empty where there is no single one."""
    columns: tuple[str, ...] = ()
    """Keys that it reads beside the record's fields."""
    column: re.Pattern[str] | None = None
    """Describes these keys, where they may have a number."""
    names_in: Callable[[JsonObject], set[str]] = set
    """The keys of a record, as `keys` has them."""

    @property
    def fields(self) -> list[str]:
        """The keys that it reads."""
        fields = self.record.model_fields.items()
        return [*(info.alias or name for name, info in fields), *self.columns]

    def reads(self, key: str) -> bool:
        return key in self.fields or bool(self.column and self.column.fullmatch(key))


def given(record: TrafficRecord, columns: tuple[str, ...]) -> list[str]:
    """Those of the columns that hold something."""
    return [name for name in columns if getattr(record, name)]


def check_single(record: TrafficRecord, columns: tuple[str, ...]) -> None:
    """Raises where several of the columns hold a text: one of them would be dropped."""
    names = given(record, columns)
    if len(names) > 1:
        raise ValueError(f"has {' and '.join(names)}: keep the one that is sent")


def answer_of(tokens: int | None) -> Passage | None:
    """The answer of a record that may say how long it is."""
    return None if tokens is None else Passage(tokens=tokens)
