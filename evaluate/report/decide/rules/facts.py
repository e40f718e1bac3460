"""The facts that the rule reads. The page holds them as JSON with the names of these fields."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from evaluate.results.late_requests import RequestPace

DIGITS = 6


def rounded(value: float | None, digits: int = DIGITS) -> float | None:
    """The number with few digits. The rule reads what the page holds, so both decide alike."""
    return None if value is None else float(f"{value:.{digits}g}")


@dataclass(frozen=True)
class CandidateFacts:
    """A candidate, and how good its answers are."""

    name: str
    weights: str
    """Equal for setups of one checkpoint."""
    original: bool
    judged: bool
    recovery: float | None
    verdict: str
    pruned: bool


@dataclass(frozen=True)
class EntryFacts:
    """One ranked candidate under one workload."""

    candidate: int
    """Its place among the candidates."""
    time: float | None
    """Geometric mean of the time that ranks it, in seconds."""
    median: float
    ttft_ms: float | None
    tpot_ms: float | None
    memory_gib: float | None
    tokens_s: float | None
    """Output tokens a second for each GPU."""
    joules: float | None
    """For each output token."""
    inputs_per_output: float | None
    """Input tokens for each output token."""


@dataclass(frozen=True)
class WorkloadFacts:
    """A workload and its candidates."""

    name: str
    tpot: bool
    """Whether answers have more than one token, so that a TPOT exists."""
    entries: list[EntryFacts]
    factors: list[float | None]
    """For each pair of entries (0-1, 0-2, ..., 1-2, ...): the ratio of their times, divided and
    multiplied by this, is its 95 % interval. None where they cannot be compared."""
    unranked: list[int]
    """Candidates that were measured here but cannot be ranked."""

    def entry(self, candidate: int) -> EntryFacts | None:
        return next((entry for entry in self.entries if entry.candidate == candidate), None)

    def factor(self, one: int, other: int) -> float | None:
        """The factor of two candidates' interval; 1 for a candidate and itself."""
        if one == other:
            return 1.0
        places = [entry.candidate for entry in self.entries]
        low, high = sorted((places.index(one), places.index(other)))
        before = low * len(places) - low * (low + 1) // 2
        return self.factors[before + high - low - 1]


@dataclass(frozen=True)
class TrialFacts:
    """A rate that a capacity search tried, and the requests that decide any targets."""

    rate: float
    """Requests a second, for each GPU."""
    allowed: int
    """Requests that may miss the targets."""
    failed: int
    """Requests that failed: they miss any targets."""
    whole: bool
    """Whether it can meet other targets: it was not cut off, and not too short."""
    slowest: list[RequestPace]
    """TTFT and TPOT in milliseconds."""


@dataclass(frozen=True)
class RateFacts:
    """The capacity of one candidate, for each GPU."""

    candidate: int
    rate: float
    """Requests a second; 0 where no rate meets the targets."""
    low: float
    high: float | None
    """None where no rate is known to miss the targets."""
    above: list[int]
    """The candidates whose capacity is significantly lower."""
    input_tokens: float
    output_tokens: float
    """Of a request, in the mean."""
    joules_input: float | None
    """For each input token, all energy counted; None if it was not measured."""
    joules_output: float | None
    """The same for each output token."""
    trials: list[TrialFacts] = field(default_factory=list)
    """Empty where a row does not hold what decides other targets, as those of earlier searches."""


@dataclass(frozen=True)
class SearchFacts:
    """A capacity search: the candidates under one traffic, the highest rate first."""

    name: str
    settings: str
    """Its traffic and targets, as text."""
    rates: list[RateFacts]
    ttft_ms: float = 0.0
    """Its own targets."""
    tpot_ms: float = 0.0
    noise: float = 1.0
    """Two rates that differ by less than this factor may be level."""


@dataclass(frozen=True)
class SetupFacts:
    """All facts of a comparison group."""

    candidates: list[CandidateFacts]
    workloads: list[WorkloadFacts]
    searches: list[SearchFacts] = field(default_factory=list)
    energy: bool = True
    """Whether any energy was measured. Where none was, as on a CPU, its price does not count."""


@dataclass(frozen=True)
class Limits:
    """The targets; None is no limit."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    min_recovery: float | None = None
    max_memory_gib: float | None = None
    allow_unjudged: bool = False


Shares = Mapping[str, float]
"""The share of each workload in the original's time; they add up to 1."""
