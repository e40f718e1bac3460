"""Chooses the candidate that serves a mix of workloads, or a single one, in the least time."""

from collections import defaultdict
from dataclasses import dataclass

from conf.models import ORIGINAL
from conf.schema.report import TargetsConfig
from conf.terminal import MOST_NAMED, listed
from evaluate.report.decide.close_calls import doubts_of_chosen, doubts_of_refused
from evaluate.report.decide.comparison import ComparisonGroup, Entry, Workload
from evaluate.report.decide.quality import Qualities
from evaluate.report.decide.recommend import (
    NO_ORIGINAL,
    UNJUDGED,
    UNRANKED,
    Choice,
    Excluded,
    Refusal,
    changes,
    has_targets,
    is_slower,
    no_headline,
    no_original,
    reasons_for,
)
from evaluate.report.decide.rules.facts import Limits, SetupFacts, Shares, WorkloadFacts
from evaluate.report.decide.rules.make_facts import limits_of, setup_facts
from evaluate.report.decide.rules.misses import texts
from evaluate.report.decide.rules.pick import (
    MixRatio,
    Pick,
    Problem,
    Standing,
    mix_ratio,
    pick,
    workload_ratio,
)
from evaluate.results.significance import Ratio

STANDARD = (
    *("interactive", "decode_bound", "prefill_bound", "long_context"),
    *("medium_batch", "base", "high_concurrency"),
)


@dataclass(frozen=True)
class Demand:
    """The workloads that one candidate is to serve: a mix, or a single one."""

    title: str
    workloads: list[Workload]
    shares: Shares
    """Shares of the original's time."""
    facts: SetupFacts
    is_mix: bool = True
    """Whether it is called a mix, so that sentences name its scenarios."""

    @property
    def workload_facts(self) -> list[WorkloadFacts]:
        return [workload for workload in self.facts.workloads if workload.name in self.shares]

    def name(self, candidate: int) -> str:
        return self.facts.candidates[candidate].name

    def entries(self, candidate: int) -> list[Entry]:
        """The candidate under each workload."""
        entries = (workload.of(self.name(candidate)) for workload in self.workloads)
        return [entry for entry in entries if entry is not None]


def choose_mix(
    group: ComparisonGroup,
    mix: dict[str, float],
    targets: TargetsConfig,
    qualities: Qualities,
    facts: SetupFacts | None = None,
) -> Choice:
    """The candidate that serves the whole mix in the least time, among those that meet the targets
    in every workload, in words. Shares are shares of the original's time."""
    title = "the mix" if mix else "all scenarios alike"
    shares, missing = shares_of(group, mix)
    if missing:
        return Choice(title, None, why=f"{', '.join(missing)} was not measured here")
    workloads = [workload for workload in group.workloads if workload.name in shares]
    demand = Demand(title, workloads, shares, facts or setup_facts(group, qualities))
    return _choice(demand, targets, qualities)


def choose(
    workload: Workload, targets: TargetsConfig, qualities: Qualities, facts: SetupFacts
) -> Choice:
    """The answer for a workload alone: that of a mix of nothing else, in fewer words."""
    shares = {workload.name: 1.0}
    demand = Demand(workload.name, [workload], shares, facts, is_mix=False)
    return _choice(demand, targets, qualities)


def _choice(demand: Demand, targets: TargetsConfig, qualities: Qualities) -> Choice:
    limits = limits_of(targets)
    picked = pick(demand.facts, demand.shares, limits)
    left_out = _left_out(demand, picked)
    refused = _refused(demand, picked, left_out if demand.is_mix else {})
    doubtful = [
        (demand.entries(one.candidate), one.misses)
        for one in picked.standings
        if one.misses and _may_change(demand, picked, one)
    ]
    doubts = doubts_of_refused(doubtful, targets)
    if picked.candidate is None:
        why = _why_none(demand, picked)
        return Choice(demand.title, None, why=why, changes=doubts, refused=refused)
    entries = demand.entries(picked.candidate)
    best = entries[0]
    quality = qualities.of(best)
    # An original that is level with another one is not faster or slower than "the original".
    is_compared = picked.ratio is not None and best.checkpoint != ORIGINAL
    ratio = _as_ratio(picked.ratio) if picked.ratio is not None and is_compared else None
    excluded = Excluded(
        has_targets(targets),
        any(one.misses or one.unjudged for one in picked.standings),
        [Refusal(demand.name(place), reasons) for place, reasons in left_out.items()],
    )
    why = reasons_for(best, bool(picked.tied), quality, ratio, excluded)
    if demand.is_mix:
        why = why.replace("the original (", "the original over the whole mix (", 1)
    return Choice(
        workload=demand.title,
        candidate=best.candidate,
        ratio=ratio,
        quality=quality,
        why=why,
        tied=[demand.name(place) for place in picked.tied],
        second="" if picked.second is None else demand.name(picked.second),
        changes=[
            *changes(best, _ratios_to(demand, picked), quality),
            *_other_winners(demand, picked, limits),
            *doubts_of_chosen(entries, targets),
            *doubts,
        ],
        refused=refused,
        unjudged=quality is None,
    )


def _as_ratio(ratio: MixRatio) -> Ratio:
    return Ratio(ratio.ratio, ratio.low, ratio.high)


def _ratio_to_best(demand: Demand, picked: Pick, candidate: int) -> Ratio | None:
    """The candidate's speed-up over the one that was picked."""
    assert picked.candidate is not None
    assert picked.reference is not None
    workloads = demand.workload_facts
    ratio = mix_ratio(workloads, demand.shares, candidate, picked.candidate, picked.reference)
    return None if ratio is None else _as_ratio(ratio)


def _may_change(demand: Demand, picked: Pick, standing: Standing) -> bool:
    """Whether a candidate that misses targets could be served if it met them."""
    if picked.candidate is None:  # nothing is served without an original to compare it with
        return picked.reference is not None
    return not is_slower(_ratio_to_best(demand, picked, standing.candidate))


def _why_none(demand: Demand, picked: Pick) -> str:
    if not demand.is_mix and (without_original := no_original(demand.workloads[0])):
        return without_original
    if picked.problem == Problem.NO_ORIGINAL:
        return _without_original(demand.workloads)
    if picked.problem == Problem.UNJUDGED:
        fastest = next(one.candidate for one in picked.standings if not one.misses)
        return no_headline(demand.name(fastest))
    everywhere = " in every scenario of the mix" if demand.is_mix else ""
    if picked.problem == Problem.TARGETS:
        return f"no candidate meets the targets{everywhere}"
    return f"no candidate can be ranked{everywhere}"


def _left_out(demand: Demand, picked: Pick) -> dict[int, list[str]]:
    """The candidates that are not ranked in all workloads, with the reasons. Those that did not
    run a workload at all are no candidates for it alone."""
    left_out: dict[int, list[str]] = {}
    for candidate in sorted(picked.incomplete):
        gaps: dict[str, list[str]] = defaultdict(list)
        for workload in demand.workload_facts:
            if workload.entry(candidate) is None:
                measured = candidate in workload.unranked
                gaps[UNRANKED if measured else "not measured"].append(workload.name)
        if demand.is_mix:
            left_out[candidate] = [f"{why} in {listed(names)}" for why, names in gaps.items()]
        elif UNRANKED in gaps:
            left_out[candidate] = [UNRANKED]
    return left_out


def _refused(demand: Demand, picked: Pick, left_out: dict[int, list[str]]) -> list[Refusal]:
    """The candidates that miss targets, the fastest first, or are left out, with the reasons."""
    missed = {one.candidate: texts(one.misses) for one in picked.standings if one.misses}
    return [Refusal(demand.name(place), why) for place, why in (missed | left_out).items()]


def _ratios_to(demand: Demand, picked: Pick) -> list[tuple[Refusal, Ratio]]:
    """The speed-up over the best of each candidate that may not be served, with the reasons."""
    ratios = []
    refused = [one for one in picked.standings if one.misses]
    unjudged = [one for one in picked.standings if one.unjudged]
    for standing in [*refused, *unjudged]:
        ratio = _ratio_to_best(demand, picked, standing.candidate)
        if ratio is not None:
            reasons = texts(standing.misses) or [UNJUDGED]
            ratios.append((Refusal(demand.name(standing.candidate), reasons), ratio))
    return ratios


def _without_original(workloads: list[Workload]) -> str:
    """The workloads in which the original is missing or unranked, and why."""
    missing: dict[str, list[str]] = defaultdict(list)
    for workload in workloads:
        if why := no_original(workload):
            missing[why].append(workload.name)
    reasons = [f"{why}: {listed(names)}" for why, names in missing.items()]
    return "; ".join(reasons) or f"in parts of the mix, {NO_ORIGINAL}"


def shares_of(group: ComparisonGroup, mix: dict[str, float]) -> tuple[dict[str, float], list[str]]:
    """The shares of a mix by workload, which add up to 1, and the names that were not measured
    here. Without a mix, all standard scenarios have equal shares, or all workloads if there is no
    standard one. A scenario that ran with several lengths divides its share among them."""
    workloads: dict[str, list[Workload]] = defaultdict(list)
    for workload in group.workloads:
        workloads[workload.measure].append(workload)
        if workload.name != workload.measure:
            workloads[workload.name].append(workload)
    weights = dict(mix) or {name: 1.0 for name in STANDARD if name in workloads}
    weights = weights or {workload.name: 1.0 for workload in group.workloads}
    missing = [name for name in weights if name not in workloads]
    total = sum(weights.values())
    shares: dict[str, float] = defaultdict(float)
    for name, share in weights.items():
        for workload in workloads.get(name, []):
            shares[workload.name] += share / total / len(workloads[name])
    return dict(shares), missing


def _other_winners(demand: Demand, picked: Pick, limits: Limits) -> list[str]:
    """Workloads of the mix that another candidate would serve significantly faster if they were
    alone, by candidate: the answers of these workloads."""
    best = picked.candidate
    if len(demand.workloads) < 2 or best is None:
        return []
    winners: dict[int, list[str]] = defaultdict(list)
    for workload in demand.workload_facts:
        winner = pick(demand.facts, {workload.name: 1.0}, limits).candidate
        ratio = None if winner is None else workload_ratio(workload, winner, best)
        if winner is not None and ratio is not None and ratio.differs and ratio.ratio > 1:
            winners[winner].append(workload.name)
    ordered = sorted(winners.items(), key=lambda item: -len(item[1]))
    return [
        f"alone, {listed(names)} would be served faster by {demand.name(winner)}"
        for winner, names in ordered[:MOST_NAMED]
    ]
