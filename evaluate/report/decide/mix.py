"""Chooses the candidate that serves a whole mix of workloads in the least time, under targets."""

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
class MixCandidate:
    """A candidate that was measured in all workloads of a mix."""

    candidate: str
    entries: Entries
    """By workload."""
    quality: Quality | None
    reasons: list[str]
    """Targets that it misses."""

    @property
    def first_entry(self) -> Entry:
        return next(iter(self.entries.values()))


def choose_mix(
    group: ComparisonGroup, mix: dict[str, float], targets: TargetsConfig, qualities: Qualities
) -> Choice:
    """The candidate that serves the whole mix in the least time, among those that meet the targets
    in every workload. Shares are shares of the original's time."""
    title = "the mix" if mix else "all scenarios alike"
    shares, missing = shares_of(group, mix)
    if missing:
        return Choice(title, None, why=f"{', '.join(missing)} was not measured here")
    noise = group.noise
    mix_candidates, refused = _mix_candidates(group, shares, targets, qualities)
    served = [mix_candidate for mix_candidate in mix_candidates if not mix_candidate.reasons]
    if not served:
        why = "no candidate can be ranked in all of it"
        if mix_candidates:
            why = "no candidate meets the targets in all of it"
        return Choice(title, None, why=why, refused=refused)
    originals = [
        mix_candidate
        for mix_candidate in mix_candidates
        if mix_candidate.first_entry.checkpoint == ORIGINAL
    ]
    if not originals:
        return Choice(title, None, why=_without_original(group, shares), refused=refused)
    reference = min(
        originals, key=lambda mix_candidate: _relative_time(mix_candidate, originals[0], shares)
    )
    some_judged = any(
        mix_candidate.quality
        for mix_candidate in mix_candidates
        if mix_candidate.first_entry.checkpoint != ORIGINAL
    )
    pool = [
        mix_candidate
        for mix_candidate in served
        if may_be_headline(
            mix_candidate.first_entry.row, mix_candidate.quality, some_judged, targets
        )
    ]
    served.sort(key=lambda mix_candidate: _relative_time(mix_candidate, reference, shares))
    if not pool:
        return Choice(title, None, why=no_headline(served[0].candidate), refused=refused)
    pool.sort(key=lambda mix_candidate: _relative_time(mix_candidate, reference, shares))
    tied = unbeaten(
        pool, lambda mix_candidate, faster: not _differs(mix_candidate, faster, shares, noise)
    )
    best_setups = [
        one for one in tied if not any(_is_better_setup(other, one, noise) for other in tied)
    ]
    best = min(
        best_setups or tied,
        key=lambda mix_candidate: preference(mix_candidate.first_entry, mix_candidate.quality),
    )
    ratio = None
    if best is not reference:
        ratio = mixed(best.entries, reference.entries, shares, noise)
    not_served = [
        (mix_candidate, mix_candidate.reasons)
        for mix_candidate in mix_candidates
        if mix_candidate.reasons
    ]
    not_served += [
        (mix_candidate, [UNJUDGED]) for mix_candidate in served if mix_candidate not in pool
    ]
    why = reasons_for(
        best.first_entry, [mix_candidate.first_entry for mix_candidate in tied], best.quality, ratio
    )
    return Choice(
        workload=title,
        candidate=best.candidate,
        ratio=ratio,
        quality=best.quality,
        why=why.replace("the original (", "the original over the whole mix (", 1),
        tied=[mix_candidate.candidate for mix_candidate in tied if mix_candidate is not best],
        second=next(
            (mix_candidate.candidate for mix_candidate in pool if mix_candidate not in tied), ""
        ),
        changes=[
            *changes(best.first_entry, _ratios_to(best, not_served, shares, noise), best.quality),
            *_other_winners(best, pool, noise),
        ],
        refused=refused,
        unjudged=best.quality is None,
    )


def _is_better_setup(one: MixCandidate, other: MixCandidate, noise: Noise) -> bool:
    """Whether both are the same checkpoint, and one setup of it is faster in some workloads and
    slower in none."""
    environments = [candidate.first_entry.row.environment for candidate in (one, other)]
    if one.first_entry.checkpoint != other.first_entry.checkpoint:
        return False
    if environments[0].checkpoint_sha256 != environments[1].checkpoint_sha256:
        return False
    ratios = [speed_ratio(entry, other.entries[name], noise) for name, entry in one.entries.items()]
    different = [ratio.ratio > 1 for ratio in ratios if ratio is not None and ratio.differs]
    return bool(different) and all(different)


def _ratios_to(
    best: MixCandidate,
    not_served: list[tuple[MixCandidate, list[str]]],
    shares: dict[str, float],
    noise: Noise,
) -> list[tuple[Refusal, Ratio]]:
    """The speed-up over the best of each candidate that may not be served, with the reasons."""
    ratios = []
    for mix_candidate, reasons in not_served:
        ratio = mixed(mix_candidate.entries, best.entries, shares, noise)
        if ratio is not None:
            ratios.append((Refusal(mix_candidate.candidate, reasons), ratio))
    return ratios


def _mix_candidates(
    group: ComparisonGroup, shares: dict[str, float], targets: TargetsConfig, qualities: Qualities
) -> tuple[list[MixCandidate], list[Refusal]]:
    """The candidates that are ranked in all workloads of the mix, and the refused ones with the
    reasons."""
    workloads = {workload.name: workload for workload in group.workloads if workload.name in shares}
    mix_candidates, refused = [], []
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
        mix_candidates.append(MixCandidate(candidate, entries, quality, reasons))
        if reasons:
            refused.append(Refusal(candidate, reasons))
    return mix_candidates, refused


def _without_original(group: ComparisonGroup, shares: dict[str, float]) -> str:
    """The workloads of the mix in which the original is missing or unranked, and why."""
    missing: dict[str, list[str]] = defaultdict(list)
    for workload in group.workloads:
        if workload.name in shares and (why := no_original(workload)):
            missing[why].append(workload.name)
    reasons = [f"{why}: {listed(names)}" for why, names in missing.items()]
    return "; ".join(reasons) or f"in parts of the mix, {NO_ORIGINAL}"


def _relative_time(
    mix_candidate: MixCandidate, reference: MixCandidate, shares: dict[str, float]
) -> float:
    """The time over the mix as a share of the reference's time."""
    values = {name: entry.cell.ranked_by for name, entry in mix_candidate.entries.items()}
    return sum(
        share
        * (mix_candidate.entries[name].median(values[name]) or 0.0)
        / (reference.entries[name].median(values[name]) or SMALLEST)
        for name, share in shares.items()
    )


def _differs(
    mix_candidate: MixCandidate, other: MixCandidate, shares: dict[str, float], noise: Noise
) -> bool:
    ratio = mixed(mix_candidate.entries, other.entries, shares, noise)
    return ratio is not None and ratio.differs


def mixed(
    entries: Entries, reference: Entries, shares: dict[str, float], noise: Noise
) -> Ratio | None:
    """The speed-up over a mix, from the sum of the relative times of its shares. All workloads of
    a candidate come from one start of the engine, so their errors may be correlated. Therefore the
    half widths are added up, too."""
    relative_time = half_width = 0.0
    for name, share in shares.items():
        ratio = speed_ratio(entries[name], reference[name], noise)
        if ratio is None:
            return None
        relative_time += share / ratio.ratio
        half_width += share * (1 / ratio.low - 1 / ratio.high) / 2
    return Ratio(
        1 / relative_time,
        1 / (relative_time + half_width),
        1 / max(relative_time - half_width, SMALLEST),
    )


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


def _other_winners(best: MixCandidate, served: list[MixCandidate], noise: Noise) -> list[str]:
    """Workloads of the mix that another candidate serves faster, by candidate."""
    if len(best.entries) < 2:
        return []
    winners: dict[str, list[str]] = defaultdict(list)
    for name, best_entry in best.entries.items():
        value = best_entry.cell.ranked_by
        first = min(
            served, key=lambda mix_candidate: mix_candidate.entries[name].median(value) or 0.0
        )
        ratio = speed_ratio(first.entries[name], best_entry, noise)
        if first is not best and ratio is not None and ratio.differs:
            winners[first.candidate].append(name)
    ordered = sorted(winners.items(), key=lambda item: -len(item[1]))
    return [
        f"alone, {listed(names)} would be served faster by {winner}"
        for winner, names in ordered[:MOST_NAMED]
    ]
