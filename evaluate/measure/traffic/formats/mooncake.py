"""Mooncake's traces: lengths, a time in milliseconds, and hashes of blocks of 512 tokens.

{"timestamp": 3052, "input_length": 1200, "output_length": 500, "hash_ids": [0, 28, 29]}

Requests with the same first hashes share these blocks.
"""

from typing import Annotated

from pydantic import Field, model_validator

from conf.schema.traffic import MILLISECONDS
from evaluate.measure.traffic.conversation import Conversation, Passage, Turn
from evaluate.measure.traffic.formats.base import Moment, Tokens, TrafficFormat, TrafficRecord

BLOCK = 512


class MooncakeRecord(TrafficRecord):
    timestamp: Moment | None = None
    """Milliseconds."""
    input_length: Tokens
    output_length: Tokens
    hash_ids: list[Annotated[int, Field(ge=0, le=2**63)]] = Field(default_factory=list)

    @model_validator(mode="after")
    def _hashes_fit(self) -> "MooncakeRecord":
        blocks = -(-self.input_length // BLOCK)
        if len(self.hash_ids) > blocks:
            raise ValueError(
                f"{len(self.hash_ids)} hash_ids are more than the {blocks} blocks of {BLOCK} "
                f"tokens in input_length {self.input_length}"
            )
        return self


def conversation(record: MooncakeRecord) -> Conversation:
    passages, left = [], record.input_length
    for block in record.hash_ids:
        size = min(BLOCK, left)
        passages.append(Passage(tokens=size, seed=f"block {block}"))
        left -= size
    if left:
        passages.append(Passage(tokens=left))
    turn = Turn(tuple(passages), Passage(tokens=record.output_length))
    return Conversation((turn,), record.timestamp)


FORMAT = TrafficFormat(
    "mooncake", ("input_length", "output_length"), MooncakeRecord, conversation, MILLISECONDS
)
