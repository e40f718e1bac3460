"""Findings of a gate that need no table: the original's quality that is left, and checkpoints of
which nothing was compared."""

from conf.models import ORIGINAL
from conf.schema.report import CompareConfig
from conf.terminal import listed
from evaluate.accuracy.pairs import is_broken
from evaluate.compare.gate import Finding, Verdict, quality_finding
from evaluate.compare.matching import Matching
from evaluate.report.decide.quality import qualities
from evaluate.results.rows import Row


def missing_findings(config: CompareConfig, matching: Matching) -> list[Finding]:
    """Workloads that the second lacks."""
    if config.min_ratio is None:
        return []
    return [
        Finding(f"{cell.label} in {cell.measure}", Verdict.UNKNOWN, "only the first has it")
        for cell in matching.missing
    ]


def quality_findings(config: CompareConfig, matching: Matching) -> list[Finding]:
    """Whether each second checkpoint keeps enough of the original's quality."""
    if config.min_recovery is None:
        return []
    known = qualities(matching.row_lists[-1])
    rows: dict[str, Row | None] = {}
    if matching.is_of_files:  # also where it was judged by another measure in the second
        rows |= dict.fromkeys(row.checkpoint for row in matching.missing_accuracy)
        rows |= {row.checkpoint: row for row in matching.of_second if row.checkpoint in rows}
    rows |= {row.checkpoint: row for _, row in matching.judged}
    ran = {cell.checkpoint for _, cell in matching.pairs}
    rows = {name: row for name, row in rows.items() if name not in ran}
    rows |= {cell.label: cell.row for _, cell in matching.pairs}
    return [
        quality_finding(label, None if row is None else known.of_row(row), config.min_recovery)
        for label, row in rows.items()
    ]


def broken_findings(config: CompareConfig, matching: Matching) -> list[Finding]:
    """Second checkpoints that are broken by another measure, engine or device than was compared."""
    if config.min_quality is None:
        return []
    compared = {id(row) for _, row in matching.judged}
    return [
        Finding(f"{row.checkpoint} in {row.measure}", Verdict.WORSE, "the second one is broken")
        for row in matching.of_second
        if is_broken(row) and id(row) not in compared and row.checkpoint != ORIGINAL
    ]


def not_compared(config: CompareConfig, matching: Matching) -> list[Finding]:
    """Checkpoints of two files that a gate would let pass, as nothing of them was compared."""
    if not config.is_gate or not matching.is_of_files:
        return []
    judged = {row.checkpoint for row, _ in matching.judged}
    judged |= {row.checkpoint for row in matching.missing_accuracy}
    timed = dict.fromkeys(cell.checkpoint for _, cell in matching.pairs)
    findings = []
    if config.min_quality is not None and judged:  # without any, there is a finding
        reason = "its accuracy was not judged in both"
        names = [name for name in timed if name not in judged | {ORIGINAL}]
        findings += [Finding(name, Verdict.UNKNOWN, reason) for name in names]
    return findings + _without_pairs(matching, judged | set(timed))


def _without_pairs(matching: Matching, compared: set[str]) -> list[Finding]:
    """Two files whose checkpoints have different names pass no gate by their originals alone."""
    names = [dict.fromkeys(row.checkpoint for row in rows) for rows in matching.row_lists]
    first, second = ([name for name in each if name != ORIGINAL] for each in names)
    if compared - {ORIGINAL} or not (first or second):
        return []
    if common := [name for name in first if name in second]:
        return [Finding(listed(common), Verdict.UNKNOWN, "under other workloads in the second")]
    if first and second:
        reason = (
            f"in the first only; the second has {listed(second)}. Give both files and "
            f"checkpoints=[{first[0]},{second[0]}]"
        )
        return [Finding(listed(first), Verdict.UNKNOWN, reason)]
    return [Finding(listed(first or second), Verdict.UNKNOWN, "in one of the files only")]
