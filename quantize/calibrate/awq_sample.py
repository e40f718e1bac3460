"""A few of the sequences that a module is called with, spread evenly over the calibration text."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from quantize.steps.awq import SEARCH_SEQUENCES

Arguments = dict[str, Any]
"""The arguments of a module's forward function, by name."""
# Dimensions of the arguments whose first dimension is known to be the sequences, or 1 for all.
DIMENSIONS = {"attention_mask": 4, "position_embeddings": 3, "position_ids": 2}


@dataclass(frozen=True)
class _Part:
    """Sequences of one batch."""

    numbers: tuple[int, ...]
    """Their places in the calibration text."""
    arguments: Arguments
    is_divisible: bool

    def thinned(self, stride: int) -> "_Part | None":
        """The sequences whose number is a multiple of the stride. A part that cannot be divided is
        kept or dropped whole, by its first number."""
        if not self.is_divisible:
            return self if self.numbers[0] % stride == 0 else None
        rows = [row for row, number in enumerate(self.numbers) if number % stride == 0]
        if len(rows) == len(self.numbers):
            return self
        if not rows:
            return None
        numbers = tuple(self.numbers[row] for row in rows)
        arguments = {
            name: _rows_of(value, rows, len(self.numbers)) for name, value in self.arguments.items()
        }
        return _Part(numbers, arguments, is_divisible=True)


class Sample:
    """Keeps every sequence while there are few, then every second, every fourth, and so on: the
    number of sequences need not be known in advance."""

    def __init__(self) -> None:
        self._parts: list[_Part] = []
        self._seen = 0
        self._stride = 1

    def __iter__(self) -> Iterator[Arguments]:
        return (part.arguments for part in self._parts)

    @property
    def sequences(self) -> int:
        return sum(len(part.numbers) for part in self._parts)

    def add(self, arguments: Arguments) -> None:
        """Offers a batch. A call without a token, as of an expert, counts for nothing."""
        hidden = _first_tensor(arguments)
        if hidden.numel() == 0:
            return
        # Without a dimension for sequences the whole call counts as one.
        count = len(hidden) if hidden.dim() == 3 else 1
        numbers = tuple(range(self._seen, self._seen + count))
        self._seen += count
        self._parts.append(_Part(numbers, arguments, count > 1 and _is_divisible(arguments)))
        self._thin()
        while self.sequences > SEARCH_SEQUENCES and self._can_be_thinned():
            self._stride *= 2
            self._thin()

    def clear(self) -> None:
        self._parts, self._seen, self._stride = [], 0, 1

    def _thin(self) -> None:
        thinned = (part.thinned(self._stride) for part in self._parts)
        self._parts = [part for part in thinned if part is not None]

    def _can_be_thinned(self) -> bool:
        return len(self._parts) > 1 or self._parts[0].is_divisible


def _is_divisible(arguments: Arguments) -> bool:
    """Whether it is certain which dimension of every argument holds the sequences."""
    hidden = _first_tensor(arguments)
    return all(
        value is hidden
        or isinstance(value, bool | int | float | str | None)
        or _has_sequences_first(value, DIMENSIONS.get(name), len(hidden))
        for name, value in arguments.items()
    )


def _first_tensor(arguments: Arguments) -> torch.Tensor:
    """The hidden states: the first tensor that a layer, attention or MLP takes."""
    return next(value for value in arguments.values() if isinstance(value, torch.Tensor))


def _has_sequences_first(value: Any, dimensions: int | None, sequences: int) -> bool:
    if isinstance(value, tuple | list):
        return all(_has_sequences_first(item, dimensions, sequences) for item in value)
    return (
        isinstance(value, torch.Tensor)
        and value.dim() == dimensions
        and len(value) in (1, sequences)
    )


def _rows_of(value: Any, rows: list[int], sequences: int) -> Any:
    """A copy of these rows, so that the whole batch can be freed."""
    if isinstance(value, tuple | list):
        return type(value)(_rows_of(item, rows, sequences) for item in value)
    if isinstance(value, torch.Tensor) and len(value) == sequences:
        return value[rows]
    return value
