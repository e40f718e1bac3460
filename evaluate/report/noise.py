"""How much starts of an engine differ, which repeats within one start cannot show."""

import math
import statistics
from dataclasses import dataclass, field
from functools import cached_property

from evaluate.summary import student, variance

FEW = 3  # loads; below, there is no telling what is usual


@dataclass
class Noise:
    """Learned from candidates that are the same to the engine: whatever they differ by is noise.
    Loads differ in it, and each knows its own from a few starts only: halfway between that and
    what is usual is the better guess."""

    variances: dict[str, tuple[float, int]] = field(default_factory=dict)
    """By load: of the logarithm of latency, and the degrees of freedom behind it."""
    starts: int = 0
    kinds: int = 0
    """Of starts that are the same."""

    @cached_property
    def usual(self) -> float:
        """The deviation in the middle of all loads."""
        return math.sqrt(statistics.median(own for own, _ in self.variances.values()))

    def margin(self, load: str) -> float:
        """How far two starts of the same may lie apart, as logarithm, in about 95 of 100 cases; 0
        where nothing shows it. Loads of one start err together in part, so that however many they
        are, they are worth one degree of freedom more; where they err together wholly, one pair of
        starts covers 86 cases, four starts of two kinds 92."""
        if not self.variances:
            return 0.0
        many = int(len(self.variances) >= FEW)
        if load not in self.variances:
            return _margin(self.usual**2, self.starts - self.kinds + many)
        own, degrees = self.variances[load]
        return _margin((own + self.usual**2) / 2 if many else own, degrees + many)


def _margin(of: float, degrees: int) -> float:
    return student(degrees) * math.sqrt(2 * of)


def learned(latencies: dict[str, dict[str, list[float]]]) -> Noise:
    """From the logarithms of latencies, by load and by what is the same to the engine."""
    variances: dict[str, tuple[float, int]] = {}
    sizes: dict[str, int] = {}
    for load, groups in latencies.items():
        twins = {kind: found for kind, found in groups.items() if len(found) > 1}
        degrees = sum(len(found) - 1 for found in twins.values())
        if degrees:
            squares = sum((len(found) - 1) * variance(found) for found in twins.values())
            variances[load] = (squares / degrees, degrees)
        for kind, found in twins.items():
            sizes[kind] = max(sizes.get(kind, 0), len(found))
    return Noise(variances, starts=sum(sizes.values()), kinds=len(sizes))
