"""A few of the sequences that a module is called with, spread evenly over the calibration text."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

Arguments = dict[str, Any]
"""The arguments of a module's forward function, by name."""
GOLDEN_RATIO = (math.sqrt(5) - 1) / 2
# Dimensions of the arguments whose first dimension is known to be the sequences, or 1 for all.
DIMENSIONS = {"attention_mask": 4, "position_embeddings": 3, "position_ids": 2}


@dataclass(frozen=True)
class _Part:
    """Sequences of one batch."""

    numbers: tuple[int, ...]
    """Their places in the calibration text."""
    arguments: Arguments
    is_divisible: bool

    def priorities(self) -> list[tuple[float, int]]:
        """A priority and a number of sequences for all that can be dropped alone."""
        if not self.is_divisible:
            return [(_priority(self.numbers[0]), len(self.numbers))]
        return [(_priority(number), 1) for number in self.numbers]

    def up_to(self, limit: float) -> "_Part | None":
        """The sequences with at most this priority; None without any."""
        if not self.is_divisible:
            return self if _priority(self.numbers[0]) <= limit else None
        rows = [row for row, number in enumerate(self.numbers) if _priority(number) <= limit]
        if len(rows) == len(self.numbers):
            return self
        if not rows:
            return None
        arguments = {
            name: _rows_of(value, rows, len(self.numbers)) for name, value in self.arguments.items()
        }
        return _Part(tuple(self.numbers[row] for row in rows), arguments, is_divisible=True)


class Sample:
    """Keeps the `most` sequences with the lowest priorities. The number of all sequences need not
    be known in advance: whenever the text ends, those that are kept lie evenly spread in it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._parts: list[_Part] = []
        self._seen = 0
        self._largest = 0  # sequences of a batch

    def batches(self) -> Iterator[Arguments]:
        """The arguments of each run. What was cut out of several batches runs together, in batches
        of the size that they had."""
        together: list[_Part] = []
        for part in self._parts:
            sequences = sum(len(other.numbers) for other in (*together, part))
            if together and (sequences > self._largest or not _fit(together[0], part)):
                yield _joined(together)
                together = []
            together.append(part)
        if together:
            yield _joined(together)

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
        self._largest = max(self._largest, count)
        self._parts.append(_Part(numbers, arguments, count > 1 and _is_divisible(arguments)))
        limit = self._limit()
        thinned = (part.up_to(limit) for part in self._parts)
        self._parts = [part for part in thinned if part is not None]

    def clear(self) -> None:
        self._parts, self._seen = [], 0

    def _limit(self) -> float:
        """The highest priority that can stay. One batch stays even if it is too large."""
        units = sorted(unit for part in self._parts for unit in part.priorities())
        limit, sequences = units[0]
        for priority, count in units[1:]:
            sequences += count
            if sequences > self._most:
                break
            limit = priority
        return limit


def _priority(number: int) -> float:
    """A sequence of numbers from 0 to 1 that fills every interval evenly: between neighbours below
    any limit there are at most three different distances."""
    return number * GOLDEN_RATIO % 1


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


def _fit(part: _Part, other: _Part) -> bool:
    """Whether two parts can run as one batch."""
    return part.is_divisible and other.is_divisible and _layout(part) == _layout(other)


def _layout(part: _Part) -> list[tuple[str, Any]]:
    return [(name, _shapes(value)) for name, value in part.arguments.items()]


def _shapes(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_shapes(item) for item in value]
    return value.shape[1:] if isinstance(value, torch.Tensor) else value


def _joined(parts: list[_Part]) -> Arguments:
    if len(parts) == 1:
        return parts[0].arguments
    counts = [len(part.numbers) for part in parts]
    return {
        name: _stacked([part.arguments[name] for part in parts], counts)
        for name in parts[0].arguments
    }


def _stacked(values: list[Any], counts: list[int]) -> Any:
    """The values of all sequences; a value for a whole part is repeated for each of its own."""
    first = values[0]
    if isinstance(first, tuple | list):
        items = zip(*values, strict=True)
        return type(first)(_stacked(list(item), counts) for item in items)
    if not isinstance(first, torch.Tensor):
        return first
    return torch.cat(
        [value.expand(count, *value.shape[1:]) for value, count in zip(values, counts, strict=True)]
    )
