"""Chooses the candidate to serve for one workload under targets, and what would change that."""

import math
from dataclasses import dataclass, field

from conf.models import ORIGINAL
from conf.schema.report import TargetsConfig
from evaluate.accuracy.divergence import BROKEN, LOSS
from evaluate.report.decide.comparison import Entry, Workload
from evaluate.report.decide.memory import need_gib
from evaluate.report.decide.quality import Qualities, Quality
from evaluate.report.decide.ranking import speed_ratio, tied_with, unbeaten
from evaluate.results.restart_noise import Noise
from evaluate.results.rows import Row
from evaluate.results.significance import Ratio

TTFT = ("ttft_p99_s", "ttft_last_s")
TPOT = "tpot_median_s"
UNJUDGED = "its accuracy was not judged: run accuracy=quick before you serve it"
NOT_JUDGED = "its accuracy was not measured"
FASTEST = "Fastest, accuracy not judged"
NO_ORIGINAL = "the original was not measured here, so nothing can be compared with it"
UNRANKED_ORIGINAL = "the original cannot be ranked here (too few valid runs, or too much spread)"
CLOSE = 0.02  # difference of recovery below which the smaller loss does not decide


@dataclass
class Refusal:
    """A candidate that may not be served, and why."""

    candidate: str
    reasons: list[str]


@dataclass
class Choice:
    """The answer for a workload or a mix."""

    workload: str
    """Its name, or that of the mix."""
    candidate: str | None
    """None if no candidate meets the targets, or none can be ranked."""
    ratio: Ratio | None = None
    quality: Quality | None = None
    why: str = ""
    tied: list[str] = field(default_factory=list)
    """Candidates without a significant difference from it."""
    second: str = ""
    changes: list[str] = field(default_factory=list)
    """What would change the answer."""
    refused: list[Refusal] = field(default_factory=list)
    unjudged: bool = False
    """The candidate's accuracy was not judged."""

    @property
    def headline(self) -> str:
        if self.candidate is None:
            return "No recommendation"
        return f"{FASTEST}: {self.candidate}" if self.unjudged else f"Serve {self.candidate}"


def unmet(entry: Entry, quality: Quality | None, targets: TargetsConfig) -> list[str]:
    """The targets that an entry misses, as text. A target whose metric was not measured counts as
    missed."""
    missed = []
    ttft = next((value for name in TTFT if (value := entry.median(name)) is not None), None)
    has_tpot = entry.row.settings.output_tokens != 1
    for value, target, name in (
        (ttft, targets.ttft_ms, "TTFT"),
        (entry.median(TPOT), targets.tpot_ms if has_tpot else None, "TPOT"),
    ):
        if target is not None and value is None:
            missed.append(f"its {name} in {entry.workload.name} was not measured")
        elif target is not None and value is not None and value * 1e3 > target:
            missed.append(
                f"{name} {value * 1e3:.3g} ms in {entry.workload.name} is over {target:g} ms"
            )
    need, target = need_gib(entry), targets.max_memory_gib
    if target is not None and need is None:
        missed.append(f"the memory of {entry.workload.name} is not known")
    elif target is not None and need is not None and need > target:
        missed.append(f"it needs {need:.1f} GiB, over {target:g} GiB")
    return missed + quality_unmet(quality, targets)


def quality_unmet(quality: Quality | None, targets: TargetsConfig) -> list[str]:
    """The quality targets that a checkpoint misses, as text."""
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


def choose(
    workload: Workload, targets: TargetsConfig, qualities: Qualities, noise: Noise
) -> Choice:
    """The fastest candidate that meets the targets and is not slower than the original. Ties go to
    the original, then to the higher recovery, then to the smaller memory."""
    ranked = [entry for entry in workload.entries if entry.rank is not None]
    judged = {entry.candidate: qualities.of(entry) for entry in ranked}
    reasons = {e.candidate: unmet(e, judged[e.candidate], targets) for e in ranked}
    meeting_targets = [entry for entry in ranked if not reasons[entry.candidate]]
    refused = [Refusal(e.candidate, reasons[e.candidate]) for e in ranked if reasons[e.candidate]]
    without_original = no_original(workload)
    if without_original or not meeting_targets:
        why = without_original or "no candidate meets the targets"
        return Choice(workload.name, None, why=why, refused=refused)
    some_judged = any(judged[e.candidate] for e in ranked if e.checkpoint != ORIGINAL)
    pool = [
        e
        for e in meeting_targets
        if may_be_headline(e.row, judged[e.candidate], some_judged, targets)
    ]
    if not pool:
        return Choice(
            workload.name, None, why=no_headline(meeting_targets[0].candidate), refused=refused
        )
    tied = unbeaten(pool, lambda entry, faster: tied_with(entry, faster, noise))
    best = min(tied, key=lambda entry: preference(entry, judged[entry.candidate]))
    unjudged = [Refusal(e.candidate, [UNJUDGED]) for e in meeting_targets if e not in pool]
    faster = [
        (refusal, ratio)
        for refusal in [*refused, *unjudged]
        for refused_entry in [workload.of(refusal.candidate)]
        if refused_entry is not None
        and (ratio := speed_ratio(refused_entry, best, noise)) is not None
    ]
    quality = judged[best.candidate]
    return Choice(
        workload=workload.name,
        candidate=best.candidate,
        ratio=best.ratio,
        quality=quality,
        why=reasons_for(best, tied, quality, best.ratio),
        tied=[entry.candidate for entry in tied if entry is not best],
        second=next((entry.candidate for entry in pool if entry not in tied), ""),
        changes=changes(best, faster, quality),
        refused=refused,
        unjudged=quality is None,
    )


def no_original(workload: Workload) -> str:
    """Why there is no original to compare with; empty if a ranked one exists."""
    originals = [entry for entry in workload.entries if entry.checkpoint == ORIGINAL]
    if not originals:
        return NO_ORIGINAL
    return "" if any(entry.rank is not None for entry in originals) else UNRANKED_ORIGINAL


def may_be_headline(
    row: Row, quality: Quality | None, some_judged: bool, targets: TargetsConfig
) -> bool:
    """Whether it may be recommended. A candidate without judged accuracy may not if other quantized
    checkpoints have one, or if it is pruned: pruning removes half of the weights."""
    if quality is not None or targets.allow_unjudged:
        return True
    return not some_judged and not row.environment.pruned


def no_headline(fastest: str) -> str:
    return f"{FASTEST.lower()}: {fastest}"


def preference(entry: Entry, quality: Quality | None) -> tuple[bool, int, float, str]:
    """Sort key among ties; smaller is better. Unknown memory never wins a tie."""
    recovery = quality.recovery if quality and quality.recovery is not None else 0.0
    steps = -round(min(recovery, 1.0) / CLOSE)
    need = need_gib(entry)
    return (
        entry.checkpoint != ORIGINAL,
        steps,
        math.inf if need is None else need,
        entry.candidate,
    )


def reasons_for(
    best: Entry, tied_entries: list[Entry], quality: Quality | None, ratio: Ratio | None
) -> str:
    if best.checkpoint == ORIGINAL:
        if len(tied_entries) > 1:
            return "no candidate is significantly faster, and the original loses no quality"
        return "no candidate that meets the targets is faster"
    return speed_text(ratio) + quality_text(quality)


def speed_text(ratio: Ratio | None) -> str:
    if ratio is None:
        return "the fastest; there is no original to compare it with"
    between = f"{ratio.low:.2f} to {ratio.high:.2f}"
    if not ratio.differs:
        return f"as fast as the original, no significant difference ({between} times)"
    if ratio.ratio < 1:
        return f"{ratio.ratio:.2f} times as fast as the original, which misses the targets"
    return f"{ratio.ratio:.2f} times as fast as the original ({between})"


def quality_text(quality: Quality | None) -> str:
    if quality is None:
        return "; its accuracy was not measured"
    if quality.recovery is None or quality.verdict == "the original":
        return ""
    return f"; {quality.recovery:.1%} of the quality is left ({quality.verdict})"


def changes(
    best: Entry, refused: list[tuple[Refusal, Ratio]], quality: Quality | None
) -> list[str]:
    """Sentences on faster candidates that were refused, and on missing accuracy."""
    sentences = [
        f"{refusal.candidate} is {ratio.ratio:.2f} times as fast as this, but "
        + " and ".join(refusal.reasons)
        for refusal, ratio in refused
        if ratio.ratio > 1 and ratio.differs
    ]
    if quality is None and best.checkpoint != ORIGINAL:
        sentences.append(UNJUDGED)
    return sentences
