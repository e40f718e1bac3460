"""Which candidate serves a whole mix of workloads in the least time, under targets."""

from collections import defaultdict
from dataclasses import dataclass

from conf.models import ORIGINAL
from conf.schema.report import TargetsConfig
from conf.terminal import MOST_NAMED, listed
from evaluate.report.decide.comparison import ComparisonGroup, Entry, Workload
from evaluate.report.decide.quality import Qualities, Quality
from evaluate.report.decide.ranking import speed_ratio, unbeaten
from evaluate.report.decide.recommend import (
    NO_ORIGINAL,
    UNJUDGED,
    Choice,
    Refusal,
    changes,
    may_be_headline,
    no_headline,
    no_original,
    preference,
    reasons_for,
    unmet,
)
from evaluate.results.restart_noise import Noise
from evaluate.results.significance import Ratio

STANDARD = (
    *("interactive", "decode_bound", "prefill_bound", "long_context"),
    *("medium_batch", "base", "high_concurrency"),
)
SMALLEST = 1e-9

Entries = dict[str, Entry]


@dataclass
class Standing:
    """A candidate that was measured in all of a mix."""

    candidate: str
    entries: Entries
    """By workload."""
    quality: Quality | None
    reasons: list[str]
    """Targets that it misses."""

    @property
    def some(self) -> Entry:
        return next(iter(self.entries.values()))


def choose_mix(
    group: ComparisonGroup, mix: dict[str, float], targets: TargetsConfig, qualities: Qualities
) -> Choice:
    """The candidate that serves the whole mix in the least time, of those that meet the targets
    in every workload of it. A share is one of the time that the original spends."""
    title = "the mix" if mix else "all scenarios alike"
    shares, missing = shares_of(group, mix)
    if missing:
        return Choice(title, None, why=f"{', '.join(missing)} was not measured here")
    noise = group.noise
    standings, refused = _standings(group, shares, targets, qualities)
    served = [standing for standing in standings if not standing.reasons]
    if not served:
        why = "no candidate can be ranked in all of it"
        if standings:
            why = "no candidate meets the targets in all of it"
        return Choice(title, None, why=why, refused=refused)
    originals = [standing for standing in standings if standing.some.checkpoint == ORIGINAL]
    if not originals:
        return Choice(title, None, why=_without_original(group, shares), refused=refused)
    reference = min(originals, key=lambda standing: _time_left(standing, originals[0], shares))
    some_judged = any(
        standing.quality for standing in standings if standing.some.checkpoint != ORIGINAL
    )
    pool = [
        standing
        for standing in served
        if may_be_headline(standing.some, standing.quality, some_judged, targets)
    ]
    served.sort(key=lambda standing: _time_left(standing, reference, shares))
    if not pool:
        return Choice(title, None, why=no_headline(served[0].candidate), refused=refused)
    pool.sort(key=lambda standing: _time_left(standing, reference, shares))
    level = unbeaten(pool, lambda standing, faster: not _differs(standing, faster, shares, noise))
    best = min(level, key=lambda standing: preference(standing.some, standing.quality))
    ratio = None
    if best is not reference:
        ratio = mixed(best.entries, reference.entries, shares, noise)
    barred = [(standing, standing.reasons) for standing in standings if standing.reasons]
    barred += [(standing, [UNJUDGED]) for standing in served if standing not in pool]
    why = reasons_for(best.some, [standing.some for standing in level], best.quality, ratio)
    return Choice(
        workload=title,
        candidate=best.candidate,
        ratio=ratio,
        quality=best.quality,
        why=why.replace("the original (", "the original over the whole mix (", 1),
        tied=[standing.candidate for standing in level if standing is not best],
        second=next((standing.candidate for standing in pool if standing not in level), ""),
        changes=[
            *changes(best.some, _ratios_to(best, barred, shares, noise), best.quality),
            *_other_winners(best, pool, noise),
        ],
        refused=refused,
        unjudged=best.quality is None,
    )


def _ratios_to(
    best: Standing,
    barred: list[tuple[Standing, list[str]]],
    shares: dict[str, float],
    noise: Noise,
) -> list[tuple[Refusal, Ratio]]:
    """How many times as fast as the best each candidate is that may not be served, and why not."""
    ratios = []
    for standing, reasons in barred:
        ratio = mixed(standing.entries, best.entries, shares, noise)
        if ratio is not None:
            ratios.append((Refusal(standing.candidate, reasons), ratio))
    return ratios


def _standings(
    group: ComparisonGroup, shares: dict[str, float], targets: TargetsConfig, qualities: Qualities
) -> tuple[list[Standing], list[Refusal]]:
    """Who ran and can be ranked in all of it; and who may not be served, with the reasons."""
    workloads = {workload.name: workload for workload in group.workloads if workload.name in shares}
    standings, refused = [], []
    for candidate in group.candidates:
        entries: Entries = {}
        gaps: dict[str, list[str]] = defaultdict(list)
        for name, workload in workloads.items():
            entry = workload.of(candidate)
            if entry is None or entry.rank is None:
                gaps["not measured" if entry is None else "cannot be ranked"].append(name)
            else:
                entries[name] = entry
        if gaps:
            reasons = [f"{why} in {listed(names)}" for why, names in gaps.items()]
            refused.append(Refusal(candidate, reasons))
            continue
        quality = qualities.of(next(iter(entries.values())))
        reasons = [why for entry in entries.values() for why in unmet(entry, quality, targets)]
        reasons = list(dict.fromkeys(reasons))
        standings.append(Standing(candidate, entries, quality, reasons))
        if reasons:
            refused.append(Refusal(candidate, reasons))
    return standings, refused


def _without_original(group: ComparisonGroup, shares: dict[str, float]) -> str:
    """In which workloads of the mix the original is missing or unranked, and why."""
    missing: dict[str, list[str]] = defaultdict(list)
    for workload in group.workloads:
        if workload.name in shares and (why := no_original(workload)):
            missing[why].append(workload.name)
    said = [f"{why}: {listed(names)}" for why, names in missing.items()]
    return "; ".join(said) or f"in parts of the mix, {NO_ORIGINAL}"


def _time_left(standing: Standing, reference: Standing, shares: dict[str, float]) -> float:
    """What is left of the reference's time."""
    by = {name: entry.cell.ranked_by for name, entry in standing.entries.items()}
    return sum(
        share
        * (standing.entries[name].median(by[name]) or 0.0)
        / (reference.entries[name].median(by[name]) or SMALLEST)
        for name, share in shares.items()
    )


def _differs(standing: Standing, other: Standing, shares: dict[str, float], noise: Noise) -> bool:
    ratio = mixed(standing.entries, other.entries, shares, noise)
    return ratio is not None and ratio.differs


def mixed(
    entries: Entries, reference: Entries, shares: dict[str, float], noise: Noise
) -> Ratio | None:
    """Times as fast over a mix: the time that is left of each share, added up. All workloads of a
    candidate come from one start of the engine, so that their errors may well point the same way:
    they are added up, too."""
    left = half = 0.0
    for name, share in shares.items():
        ratio = speed_ratio(entries[name], reference[name], noise)
        if ratio is None:
            return None
        left += share / ratio.ratio
        half += share * (1 / ratio.low - 1 / ratio.high) / 2
    return Ratio(1 / left, 1 / (left + half), 1 / max(left - half, SMALLEST))


def shares_of(group: ComparisonGroup, mix: dict[str, float]) -> tuple[dict[str, float], list[str]]:
    """The shares of a mix by workload, which add up to 1; and what was asked for and not measured
    here. Without a mix, every standard scenario counts alike, or else every workload. A scenario
    that was run with several lengths shares its part among them."""
    workloads: dict[str, list[Workload]] = defaultdict(list)
    for workload in group.workloads:
        workloads[workload.measure].append(workload)
        if workload.name != workload.measure:
            workloads[workload.name].append(workload)
    wanted = dict(mix) or {name: 1.0 for name in STANDARD if name in workloads}
    wanted = wanted or {workload.name: 1.0 for workload in group.workloads}
    missing = [name for name in wanted if name not in workloads]
    total = sum(wanted.values())
    shares: dict[str, float] = defaultdict(float)
    for name, share in wanted.items():
        for workload in workloads.get(name, []):
            shares[workload.name] += share / total / len(workloads[name])
    return dict(shares), missing


def _other_winners(best: Standing, served: list[Standing], noise: Noise) -> list[str]:
    """Workloads of the mix that another candidate serves faster, by candidate."""
    if len(best.entries) < 2:
        return []
    winners: dict[str, list[str]] = defaultdict(list)
    for name, mine in best.entries.items():
        by = mine.cell.ranked_by
        first = min(served, key=lambda standing: standing.entries[name].median(by) or 0.0)
        ratio = speed_ratio(first.entries[name], mine, noise)
        if first is not best and ratio is not None and ratio.differs:
            winners[first.candidate].append(name)
    ordered = sorted(winners.items(), key=lambda item: -len(item[1]))
    return [
        f"alone, {listed(names)} would be served faster by {winner}"
        for winner, names in ordered[:MOST_NAMED]
    ]
