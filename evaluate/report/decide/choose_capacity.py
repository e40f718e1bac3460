"""Chooses the candidate with the highest capacity among those whose quality is good enough."""

from conf.schema.report import TargetsConfig
from evaluate.report.decide.capacity import CapacityCell, CapacityTable
from evaluate.report.decide.costs import Cost
from evaluate.report.decide.quality import Qualities, Quality
from evaluate.report.decide.recommend import (
    UNJUDGED,
    Choice,
    Refusal,
    between,
    no_headline,
    quality_text,
)
from evaluate.report.decide.rules.facts import Limits, RateFacts, SearchFacts, SetupFacts
from evaluate.report.decide.rules.judge_trials import (
    has_other_targets,
    judged_search,
    targets_of,
)
from evaluate.report.decide.rules.make_facts import limits_of
from evaluate.report.decide.rules.misses import texts
from evaluate.report.decide.rules.pick_rate import RatePick, pick_rate
from evaluate.results.significance import Ratio

NO_RATE = "no rate meets the targets"
NO_TRIAL = "no rate that was tried meets the targets"


def choose_capacity(
    table: CapacityTable, place: int, facts: SetupFacts, targets: TargetsConfig, judged: Qualities
) -> Choice:
    """The highest rate, in words. The original is kept where none is significantly higher. The
    table is the one at this place among the facts' searches."""
    own, limits = facts.searches[place], limits_of(targets)
    search = judged_search(own, limits)
    picked = pick_rate(facts, search, limits)
    names = [candidate.name for candidate in facts.candidates]
    refused = [
        Refusal(names[found.candidate], reasons)
        for found in search.rates
        if (reasons := _reasons(picked, found.candidate, NO_RATE if search is own else NO_TRIAL))
    ]
    if picked.candidate is None:
        why = "no candidate meets the targets"
        if picked.fitting:
            why = no_headline(names[picked.fitting[0]])
        return Choice(table.title, None, why=why, refused=refused)
    best = table.cell(names[picked.candidate])
    quality = judged.of_row(best.row)
    ratio, why = None, ""
    if search is not own:
        rate = next(rate for rate in search.rates if rate.candidate == picked.candidate)
        why = judged_text(rate, *targets_of(own, limits)) + quality_text(quality)
    elif picked.reference is not None and picked.reference != picked.candidate:
        ratio = table.ratio(best, table.cell(names[picked.reference]))
    return Choice(
        workload=table.title,
        candidate=best.candidate,
        ratio=ratio,
        quality=quality,
        why=why or capacity_text(best, ratio, quality) + kept_text(own, limits),
        tied=[names[candidate] for candidate in picked.tied],
        second="" if picked.second is None else names[picked.second],
        changes=[UNJUDGED] if quality is None else [],
        refused=refused,
        unjudged=quality is None,
    )


def _reasons(picked: RatePick, candidate: int, no_rate_text: str) -> list[str]:
    no_rate = [no_rate_text] if candidate in picked.no_rate else []
    return [*no_rate, *texts(picked.misses.get(candidate, []))]


def judged_text(rate: RateFacts, ttft_ms: float, tpot_ms: float) -> str:
    """What a candidate holds under other targets than those of its search, as a sentence."""
    held = f"at least {rate.low:.3g}"
    if rate.high is not None:
        held = f"{rate.low:.3g} to {rate.high:.3g}"
    return (
        f"holds {held} requests/s per GPU at TTFT {ttft_ms:g} ms and TPOT {tpot_ms:g} ms, by the "
        "trials of a search with other targets"
    )


def kept_text(search: SearchFacts, limits: Limits) -> str:
    """That a search keeps its own targets where others are given."""
    if not has_other_targets(search, limits):
        return ""
    return (
        f"; under its own targets (TTFT {search.ttft_ms:g} ms, TPOT {search.tpot_ms:g} ms), since "
        "its rows do not hold what decides others"
    )


def capacity_text(cell: CapacityCell, ratio: Ratio | None, quality: Quality | None) -> str:
    """The capacity of a candidate as a sentence, with its ratio to the highest original, and with
    its cost where that is known."""
    low, high = cell.interval
    words = f"holds {cell.rate:.3g} requests/s per GPU ({low:.3g} to {high:.3g})"
    users = cell.users(cell.rate)
    if users is not None:
        words += f", {users:.3g} requests in progress at once"
    if ratio is not None:
        words += f", {ratio.ratio:.2f} times the original's ({between(ratio.low, ratio.high)})"
    if cell.cost is not None:
        words += _cost_text(cell.cost)
    return words + quality_text(quality)


def _cost_text(cost: Cost) -> str:
    """The known money and energy for input and for output tokens."""
    words = ""
    for kind, money, joules in (
        ("input", cost.per_million_input, cost.joules_per_million_input),
        ("output", cost.per_million_output, cost.joules_per_million_output),
    ):
        known = [] if money is None else [f"{money:.3g} {cost.currency}"]
        known += [] if joules is None else [f"{float(f'{joules:.3g}'):,.10g} J"]
        if known:
            words += f"; {' and '.join(known)} per million {kind} tokens"
    return words
