"""Picks the candidate with the highest capacity. `rules.js` has the same rule for the page."""

from dataclasses import dataclass, field

from evaluate.report.decide.rules.facts import Limits, RateFacts, SearchFacts, SetupFacts
from evaluate.report.decide.rules.misses import Miss, quality_misses
from evaluate.report.decide.rules.pick import Problem, may_be_headline


@dataclass
class RatePick:
    """What the rule says of a capacity search."""

    candidate: int | None
    problem: Problem = Problem.NONE
    reference: int | None = None
    """The original that all are compared with: the highest one."""
    misses: dict[int, list[Miss]] = field(default_factory=dict)
    """By candidate: the quality targets that it misses."""
    no_rate: list[int] = field(default_factory=list)
    """Candidates that meet the targets at no rate."""
    fitting: list[int] = field(default_factory=list)
    """Candidates that meet the targets, the highest rate first."""
    tied: list[int] = field(default_factory=list)
    """Candidates without a significant difference from it."""
    second: int | None = None


def pick_rate(facts: SetupFacts, search: SearchFacts, limits: Limits) -> RatePick:
    """The highest of those that are significantly higher than the highest original, else that
    original. Where no original can be served, the highest."""
    result = RatePick(None)
    fitting: list[RateFacts] = []
    for found in search.rates:
        missed = quality_misses(facts.candidates[found.candidate], limits)
        if missed:
            result.misses[found.candidate] = missed
        if not found.rate:
            result.no_rate.append(found.candidate)
        if found.rate and not missed:
            fitting.append(found)
    result.fitting = [found.candidate for found in fitting]
    some_judged = any(
        facts.candidates[found.candidate].judged and not facts.candidates[found.candidate].original
        for found in search.rates
    )
    pool = [
        found
        for found in fitting
        if may_be_headline(facts.candidates[found.candidate], some_judged, limits.allow_unjudged)
    ]
    if not pool:
        result.problem = Problem.UNJUDGED if fitting else Problem.TARGETS
        return result
    original = next((one for one in pool if facts.candidates[one.candidate].original), None)
    best = original or pool[0]
    if original is not None:
        result.reference = original.candidate
        best = next((one for one in pool if original.candidate in one.above), original)
    others = [found for found in pool if found is not best]
    result.candidate = best.candidate
    result.tied = [found.candidate for found in others if _is_tied(found, best)]
    apart = [found.candidate for found in others if not _is_tied(found, best)]
    result.second = apart[0] if apart else None
    return result


def _is_tied(one: RateFacts, other: RateFacts) -> bool:
    return one.candidate not in other.above and other.candidate not in one.above
