"""Chooses the candidate that serves a whole mix of workloads in the least time, under targets."""

from collections import defaultdict

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
from evaluate.report.decide.rules.facts import SetupFacts, Shares, WorkloadFacts
from evaluate.report.decide.rules.make_facts import limits_of, setup_facts
from evaluate.report.decide.rules.misses import texts
from evaluate.report.decide.rules.pick import MixRatio, Pick, Problem, Standing, mix_ratio, pick
from evaluate.results.significance import Ratio

STANDARD = (
    *("interactive", "decode_bound", "prefill_bound", "long_context"),
    *("medium_batch", "base", "high_concurrency"),
)


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
    facts = facts or setup_facts(group, qualities)
    picked = pick(facts, shares, limits_of(targets))
    refused = _refused(facts, picked, shares)
    names = [candidate.name for candidate in facts.candidates]
    doubtful = [
        (_entries(group, shares, names[one.candidate]), one.misses)
        for one in picked.standings
        if one.misses and _may_change(facts, picked, shares, one)
    ]
    doubts = doubts_of_refused(doubtful, targets)
    if picked.candidate is None:
        why = _why_none(group, facts, picked, shares)
        return Choice(title, None, why=why, changes=doubts, refused=refused)
    entries = _entries(group, shares, names[picked.candidate])
    best = entries[0]
    quality = qualities.of(best)
    tied = [_entries(group, shares, names[place])[0] for place in picked.tied]
    ratio = _as_ratio(picked.ratio)
    incomplete = {names[place] for place in picked.incomplete}
    excluded = Excluded(
        has_targets(targets),
        any(one.misses or one.unjudged for one in picked.standings),
        [refusal for refusal in refused if refusal.candidate in incomplete],
    )
    why = reasons_for(best, [best, *tied], quality, ratio, excluded)
    return Choice(
        workload=title,
        candidate=best.candidate,
        ratio=ratio,
        quality=quality,
        why=why.replace("the original (", "the original over the whole mix (", 1),
        tied=[names[place] for place in picked.tied],
        second="" if picked.second is None else names[picked.second],
        changes=[
            *changes(best, _ratios_to(facts, picked, shares), quality),
            *_other_winners(facts, picked, shares),
            *doubts_of_chosen(entries, targets),
            *doubts,
        ],
        refused=refused,
        unjudged=quality is None,
    )


def _as_ratio(ratio: MixRatio | None) -> Ratio | None:
    return None if ratio is None else Ratio(ratio.ratio, ratio.low, ratio.high)


def _may_change(facts: SetupFacts, picked: Pick, shares: Shares, standing: Standing) -> bool:
    """Whether a candidate that misses targets could be served if it met them."""
    if picked.candidate is None:  # nothing is served without an original to compare it with
        return any(facts.candidates[one.candidate].original for one in picked.standings)
    workloads = _mixed_workloads(facts, shares)
    return not is_slower(
        _as_ratio(mix_ratio(workloads, shares, standing.candidate, picked.candidate))
    )


def _entries(group: ComparisonGroup, shares: Shares, candidate: str) -> list[Entry]:
    """The candidate in each workload of the mix."""
    entries = (one.of(candidate) for one in group.workloads if one.name in shares)
    return [entry for entry in entries if entry is not None]


def _mixed_workloads(facts: SetupFacts, shares: Shares) -> list[WorkloadFacts]:
    return [workload for workload in facts.workloads if workload.name in shares]


def _why_none(
    group: ComparisonGroup, facts: SetupFacts, picked: Pick, shares: dict[str, float]
) -> str:
    if picked.problem == Problem.NO_ORIGINAL:
        return _without_original(group, shares)
    if picked.problem == Problem.UNJUDGED:
        fastest = next(one.candidate for one in picked.standings if not one.misses)
        return no_headline(facts.candidates[fastest].name)
    if picked.problem == Problem.TARGETS:
        return "no candidate meets the targets in every scenario of the mix"
    return "no candidate can be ranked in every scenario of the mix"


def _refused(facts: SetupFacts, picked: Pick, shares: Shares) -> list[Refusal]:
    """The candidates that are not ranked in all of the mix, or miss targets, with the reasons."""
    reasons = {one.candidate: texts(one.misses) for one in picked.standings if one.misses}
    for candidate in picked.incomplete:
        gaps: dict[str, list[str]] = defaultdict(list)
        for workload in _mixed_workloads(facts, shares):
            if workload.entry(candidate) is None:
                measured = candidate in workload.unranked
                gaps[UNRANKED if measured else "not measured"].append(workload.name)
        reasons[candidate] = [f"{why} in {listed(names)}" for why, names in gaps.items()]
    return [Refusal(facts.candidates[place].name, reasons[place]) for place in sorted(reasons)]


def _ratios_to(facts: SetupFacts, picked: Pick, shares: Shares) -> list[tuple[Refusal, Ratio]]:
    """The speed-up over the best of each candidate that may not be served, with the reasons."""
    assert picked.candidate is not None
    workloads, ratios = _mixed_workloads(facts, shares), []
    refused = [one for one in picked.standings if one.misses]
    unjudged = [one for one in picked.standings if one.unjudged]
    for standing in [*sorted(refused, key=lambda one: one.candidate), *unjudged]:
        ratio = _as_ratio(mix_ratio(workloads, shares, standing.candidate, picked.candidate))
        if ratio is not None:
            reasons = texts(standing.misses) or [UNJUDGED]
            ratios.append((Refusal(facts.candidates[standing.candidate].name, reasons), ratio))
    return ratios


def _without_original(group: ComparisonGroup, shares: dict[str, float]) -> str:
    """The workloads of the mix in which the original is missing or unranked, and why."""
    missing: dict[str, list[str]] = defaultdict(list)
    for workload in group.workloads:
        if workload.name in shares and (why := no_original(workload)):
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


def _other_winners(facts: SetupFacts, picked: Pick, shares: Shares) -> list[str]:
    """Workloads of the mix that another candidate serves faster, by candidate."""
    best = picked.candidate
    pool = {one.candidate for one in picked.standings if not one.misses and not one.unjudged}
    workloads = _mixed_workloads(facts, shares)
    if len(workloads) < 2 or best is None:
        return []
    winners: dict[int, list[str]] = defaultdict(list)
    for workload in workloads:
        entries = [entry for entry in workload.entries if entry.candidate in pool]
        first = min(entries, key=lambda entry: entry.median).candidate
        ratio = mix_ratio([workload], {workload.name: 1.0}, first, best)
        if first != best and ratio is not None and ratio.differs:
            winners[first].append(workload.name)
    ordered = sorted(winners.items(), key=lambda item: -len(item[1]))
    return [
        f"alone, {listed(names)} would be served faster by {facts.candidates[winner].name}"
        for winner, names in ordered[:MOST_NAMED]
    ]
