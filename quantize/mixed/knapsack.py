"""The choice of one option for each layer: the least damage for every size.

The sizes are whole numbers of a unit, and a table over all sizes is filled layer by layer (dynamic
programming). The result is exact where all sizes are multiples of the unit.
"""

import math
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

UNITS_MOST = 1 << 16  # length of the table


@dataclass(frozen=True)
class Option:
    """One format of a layer."""

    size: int
    damage: float


@dataclass(frozen=True)
class Table:
    """The least damage of all layers together, for every size, and the options that give it."""

    options: list[list[Option]]
    smallest: int
    """The size with the smallest option of each layer."""
    unit: int
    damages: NDArray[numpy.float64]
    """By the number of units above the smallest size."""
    chosen: list[NDArray[numpy.int64]]
    """For each layer, the option by the number of units that this and the layers before it use."""

    def within_size(self, most: float) -> list[int]:
        """The options with the least damage in at most this size; a smaller size wins a tie."""
        units = min(int((most - self.smallest) // self.unit), len(self.damages) - 1)
        if units < 0:
            raise ValueError(f"the smallest choice has a size of {self.smallest}, above {most}")
        return self._options_at(int(numpy.argmin(self.damages[: units + 1])))

    def within_damage(self, most: float) -> list[int]:
        """The smallest options whose damage is at most this."""
        possible = numpy.flatnonzero(self.damages <= most)
        if not len(possible):
            raise ValueError(f"the least damage is {self.damages.min()}, above {most}")
        return self._options_at(int(possible[0]))

    def _options_at(self, units: int) -> list[int]:
        indices = []
        for layer_options, chosen in zip(
            reversed(self.options), reversed(self.chosen), strict=True
        ):
            index = int(chosen[units])
            indices.append(index)
            units -= _units(layer_options, self.unit)[index]
        return indices[::-1]


def fill(options: list[list[Option]]) -> Table:
    """The table of all layers. `options`: those of each layer."""
    smallest = sum(min(option.size for option in layer) for layer in options)
    widest = sum(max(option.size for option in layer) for layer in options) - smallest
    steps = [
        option.size - min(other.size for other in layer) for layer in options for option in layer
    ]
    unit = max(math.gcd(*steps), math.ceil(widest / UNITS_MOST), 1)
    length = sum(max(_units(layer, unit)) for layer in options) + 1
    damages = numpy.full(length, numpy.inf)
    damages[0] = 0.0
    chosen = []
    for layer in options:
        best = numpy.full(length, numpy.inf)
        indices = numpy.zeros(length, dtype=numpy.int64)
        for index, (option, units) in enumerate(zip(layer, _units(layer, unit), strict=True)):
            sums = numpy.full(length, numpy.inf)
            sums[units:] = damages[: length - units] + option.damage
            is_better = sums < best
            best[is_better], indices[is_better] = sums[is_better], index
        damages = best
        chosen.append(indices)
    return Table(options, smallest, unit, damages, chosen)


def _units(layer: list[Option], unit: int) -> list[int]:
    """The units that each option takes above the smallest, rounded up."""
    smallest = min(option.size for option in layer)
    return [math.ceil((option.size - smallest) / unit) for option in layer]
