"""Mooncake's traces: lengths, a time in milliseconds, and hashes of blocks of tokens.

{"timestamp": 3052, "input_length": 1200, "output_length": 500, "hash_ids": [0, 28, 29]}

Requests with the same first hashes share these blocks. A block has 512 tokens here, and another
number in traces of the same form: `traffic.block_tokens`.
"""

from typing import Annotated

from pydantic import Field

from conf.schema.traffic import BLOCK_TOKENS, MILLISECONDS, MOONCAKE
from evaluate.measure.traffic.conversation import Conversation, Passage, Turn
from evaluate.measure.traffic.formats.base import Moment, Tokens, TrafficFormat, TrafficRecord

USUAL_BLOCKS = (BLOCK_TOKENS, 16, 64, 32, 128, 256, 1024)


class MooncakeRecord(TrafficRecord):
    timestamp: Moment | None = None
    """Milliseconds."""
    input_length: Tokens
    output_length: Tokens
    hash_ids: list[Annotated[int, Field(ge=0, le=2**63)]] = Field(default_factory=list)


def format_of(block_tokens: int) -> TrafficFormat:
    """The format with blocks of this size, for one file."""
    blocks: dict[int, Passage] = {}  # a trace has millions, and shares most

    def full_block(name: int) -> Passage:
        if name not in blocks:
            blocks[name] = Passage(tokens=block_tokens, seed=f"block {name}")
        return blocks[name]

    def conversation(record: MooncakeRecord) -> Conversation:
        _check_blocks(record, block_tokens)
        full = record.input_length // block_tokens
        passages = [full_block(name) for name in record.hash_ids[:full]]
        left = record.input_length - block_tokens * len(passages)
        if left:
            last = record.hash_ids[full:]
            passages.append(Passage(tokens=left, seed=f"block {last[0]}" if last else ""))
        turn = Turn(tuple(passages), Passage(tokens=record.output_length))
        return Conversation((turn,), record.timestamp)

    keys = (("input_length", "output_length"),)
    return TrafficFormat(MOONCAKE, keys, MooncakeRecord, conversation, MILLISECONDS)


def _check_blocks(record: MooncakeRecord, block_tokens: int) -> None:
    """Raises where the hashes are of blocks of another size: other prefixes would be shared."""
    hashes, length = len(record.hash_ids), record.input_length
    if not hashes or _fits(hashes, length, block_tokens):
        return
    fitting = [size for size in USUAL_BLOCKS if _fits(hashes, length, size)]
    option = "traffic.block_tokens"
    advice = f"{option}={fitting[0]} does" if fitting else f"{option} sets the size of a block"
    raise ValueError(
        f"the number of hash_ids, {hashes:,}, does not fit input_length {length} with blocks of "
        f"{block_tokens} tokens; {advice}"
    )


def _fits(hashes: int, length: int, block_tokens: int) -> bool:
    """Some traces have a hash for a last block that is not full, others have none."""
    return length // block_tokens <= hashes <= -(-length // block_tokens)


FORMAT = format_of(BLOCK_TOKENS)
