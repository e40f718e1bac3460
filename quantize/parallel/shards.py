"""How calibration text is split, so that one GPU and several give the same bytes.

The text is cut into shards. Sums of activations are made for each shard alone, and added in the
order of the shards. With several GPUs, each has one shard; one GPU takes one shard after the other.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from llmcompressor.core import active_session

from conf.errors import bad_input
from quantize.parallel.ranks import RANKS

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Shards:
    """The shards of the text, and those whose batches this process has."""

    count: int = 1
    of_batch: tuple[int, ...] = ()
    """The shard of each batch, in the order in which the batches come."""

    def current(self) -> int:
        """The shard of the batch that passes through the model now."""
        if self.count == 1:
            return 0
        number: int = active_session().state.current_batch_idx
        return self.of_batch[number]


WHOLE_TEXT = Shards()
SHARDS: ContextVar[Shards] = ContextVar("shards", default=WHOLE_TEXT)
"""The shards of this run."""


class ShardedSum:
    """A sum of tensors, made for each shard alone and then in the order of the shards."""

    def __init__(self) -> None:
        self._by_shard: dict[int, torch.Tensor] = {}

    def add(self, tensor: torch.Tensor) -> None:
        shard = SHARDS.get().current()
        known = self._by_shard.get(shard)
        self._by_shard[shard] = tensor if known is None else known + tensor

    def total(self) -> torch.Tensor:
        """The sum over all shards, of all ranks."""
        return sum_of_shards(list(self._by_shard.values()))


def sum_of_shards(tensors: list[torch.Tensor]) -> torch.Tensor:
    """The sum of what each of this process's shards gave, and of what those of other ranks did."""
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return RANKS.get().sum(total)


@contextmanager
def sharded(batches: Sequence[Batch], count: int) -> Iterator[list[Batch]]:
    """This process's batches, in the order of their shards."""
    ranks = RANKS.get()
    by_shard = split(batches, count)
    numbers = [ranks.rank] if ranks.are_several else range(count)
    own = [(number, batch) for number in numbers for batch in by_shard[number]]
    token = SHARDS.set(Shards(count, tuple(number for number, _ in own)))
    try:
        yield [batch for _, batch in own]
    finally:
        SHARDS.reset(token)


def split(batches: Sequence[Batch], count: int) -> list[list[Batch]]:
    """The batches of each shard. The largest go first, each to the shard with the fewest tokens;
    within a shard they keep their order."""
    if batches and len(batches) < count:
        raise bad_input(
            f"shards={count}: the calibration text has only {len(batches)} batches; lower "
            "batch_size, or gpus and shards"
        )
    tokens = [batch["input_ids"].numel() for batch in batches]
    numbers: list[list[int]] = [[] for _ in range(count)]
    for number in sorted(range(len(batches)), key=lambda number: -tokens[number]):
        smallest = min(numbers, key=lambda shard: sum(tokens[each] for each in shard))
        smallest.append(number)
    return [[batches[number] for number in sorted(shard)] for shard in numbers]


def of_all_rows(rows: int, solved: Callable[[slice], torch.Tensor]) -> torch.Tensor:
    """A matrix [rows, columns] that is computed in one part for each shard. Rows do not depend on
    each other, but a product of other rows may round differently: so one GPU takes the same parts
    as several do."""
    ranks, count = RANKS.get(), SHARDS.get().count
    size = -(-rows // count)
    parts = [slice(start, min(start + size, rows)) for start in range(0, rows, size)]
    if not ranks.are_several:
        return torch.cat([solved(part) for part in parts]) if count > 1 else solved(slice(rows))
    # Ranks beyond the last row repeat the last part: all exchange the same shape.
    own = solved(parts[min(ranks.rank, len(parts) - 1)])
    padded = torch.nn.functional.pad(own, (0, 0, 0, size - len(own)))
    return torch.cat(ranks.in_order(padded)[: len(parts)])[:rows]
