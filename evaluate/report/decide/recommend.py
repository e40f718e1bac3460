"""Chooses the candidate to serve for one workload under targets, and what would change that."""

from dataclasses import dataclass, field

from conf.models import ORIGINAL
from conf.schema.report import TargetsConfig
from conf.terminal import listed
from evaluate.report.decide.close_calls import doubts_of_chosen, doubts_of_refused
from evaluate.report.decide.comparison import Entry, Workload
from evaluate.report.decide.memory import need_gib
from evaluate.report.decide.quality import Qualities, Quality
from evaluate.report.decide.ranking import speed_ratio, tied_with, unbeaten
from evaluate.report.decide.rules import pick as rule
from evaluate.report.decide.rules.make_facts import (
    candidate_facts,
    entry_facts,
    limits_of,
    workload_facts,
)
from evaluate.report.decide.rules.misses import Miss, misses, texts
from evaluate.results.restart_noise import Noise
from evaluate.results.rows import Row
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


def unmet(entry: Entry, quality: Quality | None, targets: TargetsConfig) -> list[Miss]:
    """The targets that an entry misses. A target whose metric was not measured counts as missed."""
    candidate = candidate_facts(entry.candidate, entry.row, quality)
    facts, limits = workload_facts(entry.workload), limits_of(targets)
    return misses(facts, entry_facts(entry), candidate, limits)


def choose(
    workload: Workload, targets: TargetsConfig, qualities: Qualities, noise: Noise
) -> Choice:
    """The fastest candidate that meets the targets and is not slower than the original. Ties go to
    the original, then to the higher recovery, then to the smaller memory."""
    ranked = [entry for entry in workload.entries if entry.rank is not None]
    judged = {entry.candidate: qualities.of(entry) for entry in ranked}
    missed = {e.candidate: unmet(e, judged[e.candidate], targets) for e in ranked}
    meeting_targets = [entry for entry in ranked if not missed[entry.candidate]]
    missing_targets = [entry for entry in ranked if missed[entry.candidate]]
    refused = [Refusal(e.candidate, texts(missed[e.candidate])) for e in missing_targets]
    if without_original := no_original(workload):
        return Choice(workload.name, None, why=without_original, refused=refused)
    doubtful = [([entry], missed[entry.candidate]) for entry in missing_targets]
    if not meeting_targets:
        why = "no candidate meets the targets"
        doubts = doubts_of_refused(doubtful, targets)
        return Choice(workload.name, None, why=why, changes=doubts, refused=refused)
    some_judged = any(judged[e.candidate] for e in ranked if e.checkpoint != ORIGINAL)
    pool = [
        e
        for e in meeting_targets
        if may_be_headline(e.row, judged[e.candidate], some_judged, targets)
    ]
    if not pool:
        return Choice(
            workload.name,
            None,
            why=no_headline(meeting_targets[0].candidate),
            changes=doubts_of_refused(doubtful, targets),
            refused=refused,
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
    not_slower = [
        (entries, misses)
        for entries, misses in doubtful
        if not is_slower(speed_ratio(entries[0], best, noise))
    ]
    quality = judged[best.candidate]
    unranked = [e.candidate for e in workload.entries if e.rank is None]
    excluded = Excluded(
        has_targets(targets), bool(refused or unjudged), [Refusal(e, [UNRANKED]) for e in unranked]
    )
    return Choice(
        workload=workload.name,
        candidate=best.candidate,
        ratio=best.ratio,
        quality=quality,
        why=reasons_for(best, tied, quality, best.ratio, excluded),
        tied=[entry.candidate for entry in tied if entry is not best],
        second=next((entry.candidate for entry in pool if entry not in tied), ""),
        changes=[
            *changes(best, faster, quality),
            *doubts_of_chosen([best], targets),
            *doubts_of_refused(not_slower, targets),
        ],
        refused=refused,
        unjudged=quality is None,
    )


def is_slower(ratio: Ratio | None) -> bool:
    """Whether a speed-up is one of a significantly slower candidate."""
    return ratio is not None and ratio.differs and ratio.ratio < 1


def no_original(workload: Workload) -> str:
    """Why there is no original to compare with; empty if a ranked one exists."""
    originals = [entry for entry in workload.entries if entry.checkpoint == ORIGINAL]
    if not originals:
        return NO_ORIGINAL
    return "" if any(entry.rank is not None for entry in originals) else UNRANKED_ORIGINAL


def may_be_headline(
    row: Row, quality: Quality | None, some_judged: bool, targets: TargetsConfig
) -> bool:
    """Whether it may be recommended, by the rule for its judged accuracy."""
    facts = candidate_facts("", row, quality)
    return rule.may_be_headline(facts, some_judged, targets.allow_unjudged)


def no_headline(fastest: str) -> str:
    return f"{FASTEST.lower()}: {fastest}"


def preference(entry: Entry, quality: Quality | None) -> tuple[bool, int, float, str]:
    """Sort key among ties; smaller is better."""
    recovery = quality.recovery if quality else None
    is_original = entry.checkpoint == ORIGINAL
    return rule.preference(is_original, recovery, need_gib(entry), entry.candidate)


def has_targets(targets: TargetsConfig) -> bool:
    """Whether a limit is given; `allow_unjudged` is none."""
    limits = (targets.ttft_ms, targets.tpot_ms, targets.min_recovery, targets.max_memory_gib)
    return any(limit is not None for limit in limits)


def reasons_for(
    best: Entry,
    tied_entries: list[Entry],
    quality: Quality | None,
    ratio: Ratio | None,
    excluded: Excluded,
) -> str:
    if best.checkpoint == ORIGINAL:
        return original_text(len(tied_entries) > 1, excluded)
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
