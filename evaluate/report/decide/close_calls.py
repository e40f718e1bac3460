"""Targets that a candidate meets or misses only within the noise of its runs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from conf.schema.report import TargetsConfig
from conf.terminal import listed
from evaluate.report.decide.comparison import Entry
from evaluate.report.decide.rules.make_facts import MILLI, TPOT, TTFT
from evaluate.results.summary import Summary


@dataclass(frozen=True)
class CloseCall:
    """A limit that lies within the interval of what was measured."""

    workload: str
    metric: str
    measured: Summary
    """In seconds."""
    limit_ms: float

    @property
    def is_missed(self) -> bool:
        return self.measured.median * MILLI > self.limit_ms

    @property
    def text(self) -> str:
        low, value, high = (
            f"{max(seconds, 0.0) * MILLI:.3g}"
            for seconds in (self.measured.low, self.measured.median, self.measured.high)
        )
        return f"{self.metric} {value} ms in {self.workload} ({low} to {high})"


def doubts_of_chosen(entries: Iterable[Entry], targets: TargetsConfig) -> list[str]:
    """A sentence on limits that the chosen candidate meets only within its noise.

    `entries`: the candidate in each workload that was asked for."""
    calls = [call for entry in entries for call in _calls(entry, targets)]
    if not calls:
        return []
    limits = listed([f"{call.text} against {call.limit_ms:g} ms" for call in calls])
    return [f"it meets targets only within its noise: {limits}; more repeats or starts decide it"]


def doubts_of_refused(
    refused: Iterable[tuple[Sequence[Entry], int]], targets: TargetsConfig
) -> list[str]:
    """Sentences on candidates that miss nothing but time limits, and those only within their noise.

    `refused`: each candidate in each workload that was asked for, and the number of targets that it
    misses there."""
    sentences = []
    for entries, misses in refused:
        calls = [call for entry in entries for call in _calls(entry, targets) if call.is_missed]
        if calls and len(calls) == misses:
            texts = ", ".join(call.text for call in calls)
            name = entries[0].candidate
            sentences.append(f"within its noise, {name} may meet the targets: {texts}")
    return sentences


def _calls(entry: Entry, targets: TargetsConfig) -> Iterator[CloseCall]:
    for metric, measured, limit_ms in _limited(entry, targets):
        if measured.low * MILLI <= limit_ms < measured.high * MILLI:
            yield CloseCall(entry.workload.name, metric, measured, limit_ms)


def _limited(entry: Entry, targets: TargetsConfig) -> Iterator[tuple[str, Summary, float]]:
    """The measured times that have a limit, with their names."""
    has_tpot = entry.workload.settings.output_tokens != 1
    for metric, names, limit_ms in (
        ("TTFT", TTFT, targets.ttft_ms),
        ("TPOT", (TPOT,), targets.tpot_ms if has_tpot else None),
    ):
        summaries = (entry.cell.summary(name) for name in names)
        measured = next((summary for summary in summaries if summary is not None), None)
        if measured is not None and limit_ms is not None:
            yield metric, measured, limit_ms
