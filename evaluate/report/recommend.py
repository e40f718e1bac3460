"""Which candidate to serve: under targets, for one load or for a mix of them, and how sure."""

import math
from collections import defaultdict
from dataclasses import dataclass, field

from conf.errors import unknown
from conf.report_schema import TargetsConfig
from evaluate.accuracy import BROKEN, LOSS
from evaluate.report.grounds import Entry, Ground, Load
from evaluate.report.memory import need_gib
from evaluate.report.quality import Qualities, Quality
from evaluate.report.ranking import tied_with
from evaluate.summary import Ratio
from evaluate.targets import ORIGINAL

STANDARD = (
    *("interactive", "decode_bound", "prefill_bound", "long_context"),
    *("medium_batch", "base", "high_concurrency"),
)
TTFT = ("ttft_p99_s", "ttft_last_s")
TPOT = "tpot_median_s"
NOT_JUDGED = "its accuracy was not measured"
SMALLEST = 1e-9
MOST_NAMED = 3
CLOSE = 0.02  # of a share of quality: nearer than this, the smaller loss does not decide


@dataclass
class Refusal:
    """A candidate that may not be served, and why."""

    candidate: str
    reasons: list[str]
    ratio: float | None


@dataclass
class Choice:
    """The answer for a load or a mix."""

    load: str
    candidate: str | None
    """None where no candidate meets the targets, or none can be ranked."""
    ratio: Ratio | None = None
    quality: Quality | None = None
    why: str = ""
    tied: list[str] = field(default_factory=list)
    """Others that cannot be told from it."""
    second: str = ""
    changes: list[str] = field(default_factory=list)
    """What would change the answer."""
    refused: list[Refusal] = field(default_factory=list)


def unmet(entry: Entry, quality: Quality | None, targets: TargetsConfig) -> list[str]:
    """The targets that an entry misses, each in words."""
    found = []
    ttft = next((value for name in TTFT if (value := entry.median(name)) is not None), None)
    for value, most, name in (
        (ttft, targets.ttft_ms, "TTFT"),
        (entry.median(TPOT), targets.tpot_ms, "TPOT"),
    ):
        if most is not None and value is not None and value * 1e3 > most:
            found.append(f"{name} {value * 1e3:.3g} ms in {entry.load.name} is over {most:g} ms")
    need = need_gib(entry)
    if targets.max_memory_gib is not None and need is not None and need > targets.max_memory_gib:
        found.append(f"it needs {need:.1f} GiB, over {targets.max_memory_gib:g} GiB")
    return found + _quality_unmet(quality, targets)


def _quality_unmet(quality: Quality | None, targets: TargetsConfig) -> list[str]:
    least = targets.min_recovery
    if quality is None:
        return [NOT_JUDGED] if least is not None else []
    if quality.verdict == BROKEN:
        return ["it is broken"]
    if least is None:
        return ["it was judged a loss"] if quality.verdict == LOSS else []
    if quality.recovery is None:
        return [NOT_JUDGED]
    if quality.recovery < least:
        return [f"{quality.recovery:.2%} of the quality is left, less than {least:.2%}"]
    return []


def choose(load: Load, targets: TargetsConfig, qualities: Qualities, between: float) -> Choice:
    """The fastest that meets the targets; among those that cannot be told apart the original, then
    the one that keeps more, then the smaller."""
    ranked = [entry for entry in load.entries if entry.rank is not None]
    judged = {entry.candidate: qualities.of(entry) for entry in ranked}
    reasons = {e.candidate: unmet(e, judged[e.candidate], targets) for e in ranked}
    fit = [entry for entry in ranked if not reasons[entry.candidate]]
    refused = [
        Refusal(e.candidate, reasons[e.candidate], e.ratio.ratio if e.ratio else None)
        for e in ranked
        if reasons[e.candidate]
    ]
    if not fit:
        why = "no candidate meets the targets" if ranked else "nothing was measured that can rank"
        return Choice(load.name, None, why=why, refused=refused)
    level = [entry for entry in fit if entry is fit[0] or tied_with(entry, fit[0], between)]
    best = min(level, key=lambda entry: _preference(entry, judged[entry.candidate]))
    others = [entry for entry in fit if entry is not best]
    quality = judged[best.candidate]
    return Choice(
        load=load.name,
        candidate=best.candidate,
        ratio=best.ratio,
        quality=quality,
        why=_why(best, level, quality),
        tied=[entry.candidate for entry in level if entry is not best],
        second=next((e.candidate for e in others if e not in level), ""),
        changes=_changes(best, refused, quality),
        refused=refused,
    )


def _preference(entry: Entry, quality: Quality | None) -> tuple[bool, int, float, str]:
    kept = quality.recovery if quality and quality.recovery is not None else 0.0
    steps = -math.floor(kept / CLOSE)
    return (entry.checkpoint != ORIGINAL, steps, need_gib(entry) or 0.0, entry.candidate)


def _why(best: Entry, level: list[Entry], quality: Quality | None) -> str:
    if best.checkpoint == ORIGINAL:
        if len(level) > 1:
            return "no candidate is faster beyond the noise, and it loses nothing"
        return "nothing that meets the targets is faster"
    return speed_words(best.ratio) + quality_words(quality)


def speed_words(ratio: Ratio | None) -> str:
    if ratio is None:
        return "the fastest; there is no original to compare it with"
    between = f"{ratio.low:.2f} to {ratio.high:.2f}"
    if not ratio.differs:
        return f"as fast as the original within the noise ({between} times)"
    return f"{ratio.ratio:.2f} times as fast as the original ({between})"


def quality_words(quality: Quality | None) -> str:
    if quality is None:
        return "; its accuracy was not measured"
    if quality.recovery is None or quality.verdict == "the original":
        return ""
    return f"; {quality.recovery:.1%} of the quality is left ({quality.verdict})"


def _changes(best: Entry, refused: list[Refusal], quality: Quality | None) -> list[str]:
    """Faster ones that only a target keeps out, and what was not measured."""
    own = best.ratio.ratio if best.ratio else 1.0
    found = [
        f"{refusal.candidate} is faster ({refusal.ratio:.2f} times the original), but "
        + " and ".join(refusal.reasons)
        for refusal in refused
        if refusal.ratio is not None and refusal.ratio > own
    ]
    if quality is None:
        found.append("a loss of accuracy: judge it with accuracy=quick before serving it")
    return found


def choose_mix(
    ground: Ground, mix: dict[str, float], targets: TargetsConfig, qualities: Qualities
) -> Choice:
    """The candidate that serves the whole mix in the least time, of those that meet the targets
    in every load of it. A share is one of the time that the original spends."""
    shares = shares_of(ground, mix)
    loads = {load.name: load for load in ground.loads if load.name in shares}
    between = ground.between or 0.0
    standing: list[Standing] = []
    refused = []
    for candidate in ground.candidates:
        entries = {name: load.of(candidate) for name, load in loads.items()}
        reasons = _mix_reasons(entries, targets, qualities)
        ratio = mixed(entries, shares)
        if reasons or ratio is None:
            unranked = reasons or ["no original to compare it with, or too much spread"]
            refused.append(Refusal(candidate, unranked, ratio.ratio if ratio else None))
        else:
            some = next(entry for entry in entries.values() if entry is not None)
            standing.append(Standing(some, ratio, qualities.of(some)))
    title = "the mix" if mix else "all scenarios alike"
    if not standing:
        return Choice(
            title,
            None,
            why="no candidate can be ranked and meets the targets in all of it",
            refused=refused,
        )
    return _best_of_mix(title, standing, refused, between, loads)


@dataclass
class Standing:
    """A candidate that meets the targets in all of a mix."""

    entry: Entry
    ratio: Ratio
    quality: Quality | None


def _best_of_mix(
    title: str,
    standing: list[Standing],
    refused: list[Refusal],
    between: float,
    loads: dict[str, Load],
) -> Choice:
    standing.sort(key=lambda one: -one.ratio.ratio)
    top = standing[0]
    level = [one for one in standing if one is top or not _apart(one.ratio, top.ratio, between)]
    best = min(level, key=lambda one: _preference(one.entry, one.quality))
    rest = [one.entry.candidate for one in standing if one not in level]
    changes = _changes(best.entry, [], best.quality)
    own = best.ratio.ratio
    changes += [
        f"{r.candidate} is faster ({r.ratio:.2f} times the original), but {' and '.join(r.reasons)}"
        for r in refused
        if r.ratio is not None and r.ratio > own
    ]
    changes += _other_winners(best.entry.candidate, loads)
    why = _why(best.entry, [one.entry for one in level], best.quality)
    if best.entry.checkpoint != ORIGINAL:
        why = speed_words(best.ratio) + " over the whole mix" + quality_words(best.quality)
    return Choice(
        load=title,
        candidate=best.entry.candidate,
        ratio=best.ratio,
        quality=best.quality,
        why=why,
        tied=[one.entry.candidate for one in level if one is not best],
        second=rest[0] if rest else "",
        changes=changes,
        refused=refused,
    )


def _other_winners(candidate: str, loads: dict[str, Load]) -> list[str]:
    """Loads of the mix that another candidate serves faster, by that candidate."""
    winners: dict[str, list[str]] = defaultdict(list)
    for name, load in loads.items():
        first = next((entry for entry in load.entries if entry.rank == 1), None)
        mine = load.of(candidate)
        if first and mine and mine.rank not in (None, 1) and len(loads) > 1:
            winners[first.candidate].append(name)
    found = sorted(winners.items(), key=lambda item: -len(item[1]))
    return [
        f"alone, {_listed(names)} would be served faster by {winner}"
        for winner, names in found[:MOST_NAMED]
    ]


def _listed(names: list[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def shares_of(ground: Ground, mix: dict[str, float]) -> dict[str, float]:
    """The mix asked for, or every standard scenario alike, or all there is; they add up to 1."""
    known = [load.name for load in ground.loads]
    for name in mix:
        if name not in known:
            raise unknown(f"mix.{name}", name, known)
    wanted = dict(mix) or {name: 1.0 for name in known if name in STANDARD}
    wanted = wanted or dict.fromkeys(known, 1.0)
    total = sum(wanted.values())
    return {name: share / total for name, share in wanted.items()}


def mixed(entries: dict[str, Entry | None], shares: dict[str, float]) -> Ratio | None:
    """Times as fast over a mix: the time that is left of each share, added up. All loads of a
    candidate come from one start of the engine, so that their errors may well point the same way:
    they are added up, too."""
    left = half = 0.0
    for name, share in shares.items():
        entry = entries.get(name)
        if entry is None or entry.rank is None:
            return None
        ratio = Ratio(1.0, 1.0, 1.0) if entry.checkpoint == ORIGINAL else entry.ratio
        if ratio is None:
            return None
        left += share / ratio.ratio
        half += share * (1 / ratio.low - 1 / ratio.high) / 2
    return Ratio(1 / left, 1 / (left + half), 1 / max(left - half, SMALLEST))


def _mix_reasons(
    entries: dict[str, Entry | None], targets: TargetsConfig, qualities: Qualities
) -> list[str]:
    reasons: list[str] = []
    for name, entry in entries.items():
        if entry is None:
            reasons.append(f"{name} was not measured")
        elif entry.rank is None:
            reasons.append(f"{name} cannot be ranked")
        else:
            reasons += unmet(entry, qualities.of(entry), targets)
    return list(dict.fromkeys(reasons))


def _apart(one: Ratio, other: Ratio, between: float) -> bool:
    """Whether two ratios to the same original differ, by their intervals put together."""
    logs = [math.log(ratio.ratio) for ratio in (one, other)]
    halves = [math.log(ratio.high / ratio.low) / 2 for ratio in (one, other)]
    return abs(logs[0] - logs[1]) > math.hypot(*halves, between)
