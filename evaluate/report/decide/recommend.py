"""The answer for a workload or a mix, its reasons, and what would change it, in words."""

import math
from dataclasses import dataclass, field

from conf.models import ORIGINAL
from conf.schema.report import TargetsConfig
from conf.terminal import listed
from evaluate.report.decide.comparison import Entry, Workload
from evaluate.report.decide.quality import Quality
from evaluate.results.significance import Ratio

UNJUDGED = "its accuracy was not judged: run accuracy=quick before you serve it"
FASTEST = "Fastest, accuracy not judged"
NO_ORIGINAL = "the original was not measured here, so nothing can be compared with it"
UNRANKED = "cannot be ranked"
UNRANKED_ORIGINAL = "the original cannot be ranked here (too few valid runs, or too much spread)"


@dataclass
class Refusal:
    """A candidate that may not be served, and why."""

    candidate: str
    reasons: list[str]


@dataclass(frozen=True)
class Excluded:
    """Why some candidates were not compared with the original."""

    by_targets: bool
    """Whether targets are given."""
    some_refused: bool
    """Whether a ranked candidate may not be served."""
    left_out: list[Refusal]
    """The candidates without a rank."""


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


def is_slower(ratio: Ratio | None) -> bool:
    """Whether a speed-up is one of a significantly slower candidate."""
    return ratio is not None and ratio.differs and ratio.ratio < 1


def no_original(workload: Workload) -> str:
    """Why there is no original to compare with; empty if a ranked one exists."""
    originals = [entry for entry in workload.entries if entry.checkpoint == ORIGINAL]
    if not originals:
        return NO_ORIGINAL
    return "" if any(entry.rank is not None for entry in originals) else UNRANKED_ORIGINAL


def no_headline(fastest: str) -> str:
    return f"{FASTEST.lower()}: {fastest}"


def has_targets(targets: TargetsConfig) -> bool:
    """Whether a limit is given; `allow_unjudged` is none."""
    limits = (targets.ttft_ms, targets.tpot_ms, targets.min_recovery, targets.max_memory_gib)
    return any(limit is not None for limit in limits)


def reasons_for(
    best: Entry,
    is_tied: bool,
    quality: Quality | None,
    ratio: Ratio | None,
    excluded: Excluded,
) -> str:
    if best.checkpoint == ORIGINAL:
        return original_text(is_tied, excluded)
    return speed_text(ratio) + quality_text(quality)


def original_text(is_tied: bool, excluded: Excluded) -> str:
    """Why the original is served. `originalText` of the page's script says the same, without the
    reasons of those left out."""
    candidate = "ranked candidate" if excluded.left_out else "candidate"
    if is_tied:
        text = f"no {candidate} is significantly faster, and the original loses no quality"
    elif excluded.by_targets:
        text = f"no {candidate} that meets the targets is faster"
    elif excluded.some_refused:
        text = f"no {candidate} that may be served is faster"
    else:
        text = f"no {candidate} is faster"
    left_out = [f"{each.candidate} ({'; '.join(each.reasons)})" for each in excluded.left_out]
    return f"{text}; left out: {listed(left_out)}" if left_out else text


def between(low: float | None, high: float | None) -> str:
    """The interval of a ratio in words. Infinity or None at its end is no upper end."""
    if high is None or not math.isfinite(high):
        return f"{low:.2f} or more"
    return f"{low:.2f} to {high:.2f}"


def speed_text(ratio: Ratio | None) -> str:
    if ratio is None:
        return "the fastest; there is no original to compare it with"
    interval = between(ratio.low, ratio.high)
    if not ratio.differs:
        return f"as fast as the original, no significant difference ({interval} times)"
    if ratio.ratio < 1:
        return f"{ratio.ratio:.2f} times as fast as the original, which misses the targets"
    return f"{ratio.ratio:.2f} times as fast as the original ({interval})"


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
