"""The targets that a candidate misses, and how that is said."""

from collections.abc import Sequence
from dataclasses import dataclass

from evaluate.accuracy.verdicts import BROKEN, LOSS
from evaluate.report.decide.rules.facts import CandidateFacts, EntryFacts, Limits, WorkloadFacts

TEXTS = {
    "ttft": "TTFT {value} ms in {workload} is over {limit} ms",
    "ttft unknown": "its TTFT in {workload} was not measured",
    "tpot": "TPOT {value} ms in {workload} is over {limit} ms",
    "tpot unknown": "its TPOT in {workload} was not measured",
    "memory": "it needs {value} GiB, over {limit} GiB",
    "memory unknown": "the memory of {workload} is not known",
    "unjudged": "its accuracy was not measured",
    "broken": "it is broken",
    "loss": "it was judged a loss",
    "recovery": "{value} of the quality is left, less than {limit}",
}


@dataclass(frozen=True)
class Miss:
    """One target that is missed. A target whose metric was not measured counts as missed."""

    rule: str
    """A key of TEXTS."""
    workload: str = ""
    value: float | None = None
    limit: float | None = None

    @property
    def text(self) -> str:
        value, limit = self.value or 0.0, self.limit or 0.0
        shown = (milliseconds(value), f"{limit:g}")
        if self.rule == "recovery":
            shown = (f"{value:.2%}", f"{limit:.2%}")
        elif self.rule == "memory":
            shown = (f"{value:.1f}", f"{limit:g}")
        return TEXTS[self.rule].format(workload=self.workload, value=shown[0], limit=shown[1])


def milliseconds(value: float) -> str:
    """Three digits, and no power of ten for long times."""
    return f"{value:.3g}" if value < 999.5 else f"{float(f'{value:.3g}'):,.0f}"


def texts(misses: Sequence[Miss]) -> list[str]:
    """The sentences, without duplicates."""
    return list(dict.fromkeys(miss.text for miss in misses))


def misses(
    workload: WorkloadFacts, entry: EntryFacts, candidate: CandidateFacts, limits: Limits
) -> list[Miss]:
    """The targets that an entry misses."""
    found = []
    tpot_limit = limits.tpot_ms if workload.tpot else None
    for rule, value, limit in (
        ("ttft", entry.ttft_ms, limits.ttft_ms),
        ("tpot", entry.tpot_ms, tpot_limit),
        ("memory", entry.memory_gib, limits.max_memory_gib),
    ):
        if limit is None:
            continue
        if value is None:
            found.append(Miss(f"{rule} unknown", workload.name))
        elif value > limit:
            found.append(Miss(rule, workload.name, value, limit))
    return found + quality_misses(candidate, limits)


def quality_misses(candidate: CandidateFacts, limits: Limits) -> list[Miss]:
    """The quality targets that a candidate misses."""
    least = limits.min_recovery
    if not candidate.judged:
        return [Miss("unjudged")] if least is not None else []
    if candidate.verdict == BROKEN:
        return [Miss("broken")]
    if least is None:
        return [Miss("loss")] if candidate.verdict == LOSS else []
    if candidate.recovery is None:
        return [Miss("unjudged")]
    if candidate.recovery < least:
        return [Miss("recovery", value=candidate.recovery, limit=least)]
    return []
