"""Compares two results files, or two checkpoints: the story of a run."""

from pathlib import Path

from conf.errors import QuantlineError, bad_input, unknown
from conf.schema.report import CompareConfig
from conf.terminal import listed, say
from evaluate.compare.accuracy import compare_accuracy
from evaluate.compare.gate import Finding, Verdict, failure
from evaluate.compare.matching import Matching, matched_checkpoints, matched_files
from evaluate.compare.missing import (
    broken_findings,
    missing_findings,
    not_compared,
    quality_findings,
)
from evaluate.compare.pairs import check_distinct
from evaluate.compare.speed import compare_speed
from evaluate.results.merging import merged_rows
from evaluate.results.rows import AccuracyRow, Row, SpeedRow, TrialRow


def compare(config: CompareConfig) -> None:
    files = [Path(entry).expanduser() for entry in config.results]
    check_distinct(files, config.checkpoints)
    faults: list[str] = []
    if config.checkpoints is not None:
        matching = matched_checkpoints(list(config.checkpoints), _rows(files, faults))
    else:
        matching = matched_files(files, [_rows([path], faults) for path in files])
    has_all = bool(matching.pairs) or (
        bool(matching.judged) and config.value is None and config.min_ratio is None
    )
    if not has_all:
        _check_names(config, matching)
    _say_first_only(matching)
    if not has_all and not config.is_gate:
        raise _nothing_in_common(matching)
    findings: list[Finding] = []
    if matching.pairs:
        findings += compare_speed(config, matching)
    findings += missing_findings(config, matching)
    findings += compare_accuracy(config, matching)
    findings += broken_findings(config, matching)
    if faults:
        raise bad_input(f"{len(faults)} lines were left out, the first: {faults[0]}")
    findings += quality_findings(config, matching)
    findings += not_compared(config, matching)
    error = failure(findings)
    if error is not None:
        raise error
    if not has_all:
        raise _nothing_in_common(matching)
    if findings:
        say(f"{Verdict.GOOD}: all {len(findings)} comparisons meet their thresholds")


def _check_names(config: CompareConfig, matching: Matching) -> None:
    """Raises where there is no checkpoint of a given name."""
    known = _labels(matching)
    names = {row.checkpoint for rows in matching.row_lists for row in rows}
    for name in config.checkpoints or []:
        if name not in known and name not in names:
            raise unknown(f"checkpoints={name}", name, known)


def _nothing_in_common(matching: Matching) -> QuantlineError:
    titles, labels = " and ".join(matching.titles), ", ".join(_labels(matching)) or "none"
    return bad_input(f"{titles} have no workload in common, and no accuracy; there are: {labels}")


def _labels(matching: Matching) -> dict[str, None]:
    """The checkpoints that were timed, with their options, and those that were judged."""
    cells = (cell.label for cell_list in matching.cell_lists for cell in cell_list)
    rows = (row for row_list in matching.row_lists for row in row_list)
    judged = (row.checkpoint for row in rows if isinstance(row, AccuracyRow))
    return dict.fromkeys(cells) | dict.fromkeys(judged)


def _say_first_only(matching: Matching) -> None:
    timed = matching.unmatched if matching.cell_lists[-1] else []
    names = [f"{cell.label} in {cell.measure}" for cell in timed]
    if matching.is_of_files:
        names += [f"{row.checkpoint} in {row.measure}" for row in matching.unjudged]
    if names and (matching.pairs or matching.is_of_files):
        say(f"in the first only, or under another workload in the second: {listed(names)}")


def _rows(files: list[Path], faults: list[str]) -> list[Row]:
    """The rows of the files. Lines that cannot be read are added to the faults."""
    rows, read_faults, notes = merged_rows(files)
    faults += read_faults
    for line in (*read_faults, *notes):
        say(line)
    if not any(isinstance(row, SpeedRow | AccuracyRow) for row in rows):
        names = ", ".join(map(str, files))
        searches = any(isinstance(row, TrialRow) for row in rows)
        instead = "; evaluate.report compares capacity searches" if searches else ""
        raise bad_input(f"results={names}: there are no timed runs in it, and no accuracy{instead}")
    return rows
