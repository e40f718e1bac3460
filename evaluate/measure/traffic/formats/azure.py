"""Azure's traces of language models: a table of times and lengths.

TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
"""

from datetime import UTC, datetime

from pydantic import Field

from evaluate.measure.traffic.conversation import Conversation, Passage, Turn
from evaluate.measure.traffic.formats.base import Tokens, TrafficFormat, TrafficRecord


class AzureRecord(TrafficRecord):
    timestamp: str | None = Field(default=None, alias="TIMESTAMP")
    """A date and time; without a zone, UTC."""
    input_tokens: Tokens = Field(alias="ContextTokens")
    output_tokens: Tokens = Field(alias="GeneratedTokens")


def conversation(record: AzureRecord) -> Conversation:
    moment = None if record.timestamp is None else _seconds(record.timestamp)
    turn = Turn((Passage(tokens=record.input_tokens),), Passage(tokens=record.output_tokens))
    return Conversation((turn,), moment)


def _seconds(text: str) -> float:
    """Seconds since 1970."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"TIMESTAMP is {text[:40]!a}; should be a date and time") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


FORMAT = TrafficFormat(
    "azure",
    (("ContextTokens", "GeneratedTokens"),),
    AzureRecord,
    conversation,
    time_key="TIMESTAMP",
    has_dates=True,
)
