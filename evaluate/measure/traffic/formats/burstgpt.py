"""BurstGPT's traces: a table of times and lengths.

Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log

A request without tokens in its response failed, and is left out.
"""

from pydantic import Field

from evaluate.measure.traffic.conversation import Conversation, Passage, Turn
from evaluate.measure.traffic.formats.base import MaybeTokens, Moment, TrafficFormat, TrafficRecord


class BurstGptRecord(TrafficRecord):
    timestamp: Moment | None = Field(default=None, alias="Timestamp")
    """Seconds."""
    input_tokens: MaybeTokens = Field(alias="Request tokens")
    output_tokens: MaybeTokens = Field(alias="Response tokens")


def conversation(record: BurstGptRecord) -> Conversation | None:
    if not record.input_tokens or not record.output_tokens:
        return None
    turn = Turn((Passage(tokens=record.input_tokens),), Passage(tokens=record.output_tokens))
    return Conversation((turn,), record.timestamp)


FORMAT = TrafficFormat(
    "burstgpt",
    (("Request tokens", "Response tokens"),),
    BurstGptRecord,
    conversation,
    time_key="Timestamp",
)
