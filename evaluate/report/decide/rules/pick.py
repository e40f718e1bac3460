"""Picks the candidate for a mix of workloads: the least time among those that meet the targets.

`show/page_files/rules.js` is the same rule for the page's sliders. Change both together;
tests/evaluate/report/rules/test_rules.py compares them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from evaluate.report.decide.rules.facts import (
    CandidateFacts,
    EntryFacts,
    Limits,
    SetupFacts,
    Shares,
    WorkloadFacts,
)
from evaluate.report.decide.rules.misses import Miss, misses

SMALLEST = 1e-9
CLOSE = 0.02  # difference of recovery below which the smaller loss does not decide


class Problem(StrEnum):
    """Why nothing is picked."""

    NONE = ""
    UNRANKED = "unranked"
    TARGETS = "targets"
    NO_ORIGINAL = "original"
    UNJUDGED = "unjudged"


@dataclass(frozen=True)
class MixRatio:
    """The speed-up of one candidate over another over a mix."""

    ratio: float
    low: float
    high: float

    @property
    def differs(self) -> bool:
        return not self.low <= 1 <= self.high


@dataclass
class Standing:
    """A candidate that was ranked in every workload of the mix."""

    candidate: int
    relative_time: float
    """Its time over the mix, as a share of the reference's."""
    misses: list[Miss]
    unjudged: bool = False
    """It meets the targets, but may not be recommended, because its accuracy was not judged."""


@dataclass
class Pick:
    """What the rule says. Candidates are given by their places among the facts' candidates."""

    candidate: int | None
    problem: Problem = Problem.NONE
    reference: int | None = None
    """The original that the others are compared with: the fastest one."""
    ratio: MixRatio | None = None
    tied: list[int] = field(default_factory=list)
    second: int | None = None
    standings: list[Standing] = field(default_factory=list)
    """The least time first, where an original was ranked."""
    incomplete: list[int] = field(default_factory=list)
    """Candidates that were not ranked in all of the mix."""


def pick(facts: SetupFacts, shares: Shares, limits: Limits) -> Pick:
    """The candidate that serves the whole mix in the least time. Ties go to the better setup of a
    checkpoint, then to the original, then to the higher recovery, then to the smaller memory."""
    workloads = [workload for workload in facts.workloads if shares.get(workload.name, 0) > 0]
    standings, incomplete = _standings(facts, workloads, limits)
    result = Pick(None, standings=standings, incomplete=incomplete)
    originals = [one for one in standings if facts.candidates[one.candidate].original]
    served = [standing for standing in standings if not standing.misses]
    if originals:
        first = originals[0].candidate
        fastest = min(originals, key=lambda one: _time(workloads, shares, one.candidate, first))
        result.reference = reference = fastest.candidate
        for standing in standings:
            standing.relative_time = _time(workloads, shares, standing.candidate, reference)
        standings.sort(key=lambda standing: standing.relative_time)
    if not served or not originals:
        result.problem = Problem.TARGETS if standings else Problem.UNRANKED
        if served:
            result.problem = Problem.NO_ORIGINAL
        return result
    some_judged = any(
        candidate.judged and not candidate.original
        for candidate in (facts.candidates[standing.candidate] for standing in standings)
    )
    for standing in served:
        candidate = facts.candidates[standing.candidate]
        standing.unjudged = not may_be_headline(candidate, some_judged, limits.allow_unjudged)
    pool = [one.candidate for one in standings if not one.misses and not one.unjudged]
    if not pool:
        result.problem = Problem.UNJUDGED
        return result
    tied = _unbeaten(pool, workloads, shares, reference)
    best = _best(facts, workloads, tied)
    result.candidate = best
    if best != reference:
        result.ratio = mix_ratio(workloads, shares, best, reference, reference)
    result.tied = [candidate for candidate in tied if candidate != best]
    result.second = next((candidate for candidate in pool if candidate not in tied), None)
    return result


def _standings(
    facts: SetupFacts, workloads: Sequence[WorkloadFacts], limits: Limits
) -> tuple[list[Standing], list[int]]:
    """The candidates that are ranked in all workloads, and the others."""
    standings, incomplete = [], []
    for place, candidate in enumerate(facts.candidates):
        found: list[Miss] = []
        complete = bool(workloads)
        for workload in workloads:
            entry = workload.entry(place)
            if entry is None:
                complete = False
            else:
                found += misses(workload, entry, candidate, limits)
        if complete:
            standings.append(Standing(place, math.inf, list(dict.fromkeys(found))))
        else:
            incomplete.append(place)
    return standings, incomplete


def may_be_headline(candidate: CandidateFacts, some_judged: bool, allow_unjudged: bool) -> bool:
    """Whether it may be recommended. A candidate without judged accuracy may not if other quantized
    checkpoints have one, or if it is pruned: pruning removes half of the weights."""
    if candidate.judged or allow_unjudged:
        return True
    return not some_judged and not candidate.pruned


def _entry(workload: WorkloadFacts, candidate: int) -> EntryFacts:
    entry = workload.entry(candidate)
    assert entry is not None
    return entry


def _time(
    workloads: Sequence[WorkloadFacts], shares: Shares, candidate: int, reference: int
) -> float:
    """The time over the mix as a share of the reference's time."""
    total = 0.0
    for workload in workloads:
        own, other = _entry(workload, candidate).median, _entry(workload, reference).median
        total += shares[workload.name] * own / (other or SMALLEST)
    return total


def mix_ratio(
    workloads: Sequence[WorkloadFacts], shares: Shares, one: int, other: int, reference: int
) -> MixRatio | None:
    """The speed-up over a mix: the ratio of the sums of their times. The shares are those of the
    reference's time.

    All workloads of a candidate come from one start of the engine, so their errors may be
    correlated. Therefore the widths of the workloads' intervals are added up, each with the
    workload's share in the time of both. Where these shares differ, a part of one time has no
    counterpart in the other, and counts with its interval to the reference. The interval is
    symmetric on a logarithmic scale: exchanging `one` and `other` gives the same verdict."""
    times, others_times = (_times(workloads, shares, each, reference) for each in (one, other))
    if times is None or others_times is None:
        return None
    total, others_total = _total(times), _total(others_times)
    width = 0.0
    for workload, time, others_time in zip(workloads, times, others_times, strict=True):
        part, others_part = time / total, others_time / others_total
        for first, second, weight in (
            (one, other, min(part, others_part)),
            (one, reference, max(part - others_part, 0.0)),
            (other, reference, max(others_part - part, 0.0)),
        ):
            factor = workload.factor(first, second) if weight else 1.0
            if factor is None:
                return None
            width += weight * (factor - 1)
    ratio = others_total / total
    return MixRatio(ratio, ratio / (1 + width), ratio * (1 + width))


def _times(
    workloads: Sequence[WorkloadFacts], shares: Shares, candidate: int, reference: int
) -> list[float] | None:
    """The candidate's time in each workload, in units of the reference's time over the mix."""
    times = []
    for workload in workloads:
        own, others = _entry(workload, candidate).time, _entry(workload, reference).time
        if own is None or others is None:
            return None
        times.append(shares[workload.name] * own / others)
    return times


def _total(values: Sequence[float]) -> float:
    """The plain sum, as the page's script makes it: Python's `sum` rounds in another way."""
    total = 0.0
    for value in values:
        total += value
    return total


def workload_ratio(workload: WorkloadFacts, one: int, other: int) -> MixRatio | None:
    """The speed-up under a workload alone."""
    return mix_ratio([workload], {workload.name: 1.0}, one, other, other)


def _unbeaten(
    pool: list[int], workloads: Sequence[WorkloadFacts], shares: Shares, reference: int
) -> list[int]:
    """The candidates, fastest first, that no faster one beats significantly."""
    tied = []
    for place, candidate in enumerate(pool):
        ratios = [
            mix_ratio(workloads, shares, candidate, faster, reference) for faster in pool[:place]
        ]
        if not any(ratio is not None and ratio.differs for ratio in ratios):
            tied.append(candidate)
    return tied


def _best(facts: SetupFacts, workloads: Sequence[WorkloadFacts], tied: list[int]) -> int:
    good = [
        one
        for one in tied
        if not any(_is_better_setup(facts, workloads, other, one) for other in tied)
    ]
    first = workloads[0]

    def key(place: int) -> tuple[bool, int, float, str]:
        candidate = facts.candidates[place]
        memory = _entry(first, place).memory_gib
        return preference(candidate.original, candidate.recovery, memory, candidate.name)

    return min(good or tied, key=key)


def _is_better_setup(
    facts: SetupFacts, workloads: Sequence[WorkloadFacts], one: int, other: int
) -> bool:
    """Whether both are the same checkpoint, and one setup of it is faster in some workloads and
    slower in none."""
    if one == other or facts.candidates[one].weights != facts.candidates[other].weights:
        return False
    ratios = [workload_ratio(workload, one, other) for workload in workloads]
    different = [ratio.ratio > 1 for ratio in ratios if ratio is not None and ratio.differs]
    return bool(different) and all(different)


def preference(
    is_original: bool, recovery: float | None, memory_gib: float | None, name: str
) -> tuple[bool, int, float, str]:
    """Sort key among ties; smaller is better. Unknown memory never wins a tie."""
    steps = -math.floor(min(recovery or 0.0, 1.0) / CLOSE + 0.5)
    return not is_original, steps, math.inf if memory_gib is None else memory_gib, name
