"""What a format of traffic files states."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from conf.schema.ranges import TOKENS_MOST
from conf.schema.traffic import SECONDS
from evaluate.measure.traffic.conversation import Conversation

Tokens = Annotated[int, Field(ge=1, le=TOKENS_MOST)]
Text = Annotated[str, StringConstraints(min_length=1)]
Moment = Annotated[float, Field(ge=0, le=1e20)]


class TrafficRecord(BaseModel):
    """One record of a file. Strict: a string is never read as a number."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


@dataclass(frozen=True)
class TrafficFormat:
    """How records of one format are told from others, and read."""

    name: str
    keys: tuple[str, ...]
    """A record that has all of these keys is taken for this format."""
    record: type[Any]
    conversation: Callable[[Any], Conversation | None]
    """The conversation of a valid record; None for one without a question and an answer."""
    unit: str = SECONDS
    """Of its timestamps."""
