"""Targets that a candidate meets or misses only within the noise of its runs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from conf.schema.report import TargetsConfig
from conf.terminal import listed
from evaluate.report.decide.comparison import Entry
from evaluate.report.decide.rules.make_facts import MILLI, TPOT, TTFT
from evaluate.report.decide.rules.misses import Miss, milliseconds
from evaluate.results.summary import Summary

MORE_RUNS = "more repeats or starts"


@dataclass(frozen=True)
class CloseCall:
    """A limit that lies within the interval of what was measured."""

    rule: str
    """The target's name among the rules of misses."""
    workload: str
    measured: Summary
    """In seconds."""
    limit_ms: float

    @property
    def text(self) -> str:
        value, low, high = (
            milliseconds(max(seconds, 0.0) * MILLI)
            for seconds in (self.measured.median, self.measured.low, self.measured.high)
        )
        where = f"{self.rule.upper()} {value} ms in {self.workload} ({low} to {high})"
        return f"{where} against {self.limit_ms:g} ms"


def doubts_of_chosen(entries: Iterable[Entry], targets: TargetsConfig) -> list[str]:
    """A sentence on limits that the chosen candidate meets only within its noise.

    `entries`: the candidate in each workload that was asked for."""
    calls = [call for entry in entries for call in _close_calls(entry, targets)]
    if not calls:
        return []
    return [f"{MORE_RUNS}: it meets targets only within its noise, {_listed(calls)}"]


def doubts_of_refused(
    refused: Iterable[tuple[Sequence[Entry], Sequence[Miss]]], targets: TargetsConfig
) -> list[str]:
    """A sentence on each candidate that misses nothing but time limits, and those only within its
    noise.

    `refused`: each candidate in each workload that was asked for, and what it misses there."""
    sentences = []
    for entries, misses in refused:
        calls = {
            (call.rule, call.workload): call
            for entry in entries
            for call in _close_calls(entry, targets)
        }
        close = [calls[key] for miss in misses if (key := (miss.rule, miss.workload)) in calls]
        if close and len(close) == len(misses):
            sentences.append(
                f"{MORE_RUNS} of {entries[0].candidate}: it misses targets only within its noise, "
                f"{_listed(close)}"
            )
    return sentences


def _listed(calls: list[CloseCall]) -> str:
    return listed([call.text for call in calls])


def _close_calls(entry: Entry, targets: TargetsConfig) -> Iterator[CloseCall]:
    has_tpot = entry.workload.settings.output_tokens != 1
    for rule, names, limit_ms in (
        ("ttft", TTFT, targets.ttft_ms),
        ("tpot", (TPOT,), targets.tpot_ms if has_tpot else None),
    ):
        summaries = (entry.cell.summary(name) for name in names)
        measured = next((summary for summary in summaries if summary is not None), None)
        if measured is None or limit_ms is None:
            continue
        if measured.low * MILLI <= limit_ms < measured.high * MILLI:
            yield CloseCall(rule, entry.workload.name, measured, limit_ms)
