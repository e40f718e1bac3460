"""Compares two results files, or two checkpoints: the story of a run."""

from pathlib import Path

from conf.errors import QuantlineError, bad_input, unknown
from conf.models import ORIGINAL
from conf.schema.report import CompareConfig
from conf.terminal import listed, say
from evaluate.accuracy.pairs import AccuracyPair, accuracy_pairs
from evaluate.compare.accuracy import compare_accuracy
from evaluate.compare.gate import Finding, Verdict, failure, quality_finding
from evaluate.compare.pairs import Pair, check_distinct, two_checkpoints, two_files
from evaluate.compare.speed import compare_speed
from evaluate.report.decide.quality import Qualities, qualities
from evaluate.results.cells import Cell, cells
from evaluate.results.merging import merged_rows
from evaluate.results.rows import AccuracyRow, Row, SpeedRow, TrialRow


def compare(config: CompareConfig) -> None:
    files = [Path(entry).expanduser() for entry in config.results]
    check_distinct(files, config.checkpoints)
    faults: list[str] = []
    if config.checkpoints is not None:
        row_lists = [_rows(files, faults)]
        cell_lists = [cells(row_lists[0])]
        pairs, unmatched = two_checkpoints(cell_lists[0], *config.checkpoints)
        titles = list(config.checkpoints)
    else:
        row_lists = [_rows([path], faults) for path in files]
        cell_lists = [cells(rows) for rows in row_lists]
        pairs, unmatched = two_files(cell_lists[0], cell_lists[1])
        titles = _distinct_names(files)
    judged = accuracy_pairs(row_lists[0], row_lists[-1], config.checkpoints)
    if unmatched and cell_lists[-1] and (pairs or config.checkpoints is None):
        names = [f"{one.label} in {one.measure}" for one in unmatched]
        say(f"in the first only, or under another workload in the second: {listed(names)}")
    if not pairs and (not judged or config.value is not None or config.min_ratio is not None):
        raise _nothing_in_common(config, titles, cell_lists, row_lists)
    findings: list[Finding] = []
    if pairs:
        left = unmatched if config.checkpoints else _tried(unmatched, row_lists[-1])
        findings += compare_speed(config, titles, cell_lists, pairs, left)
    findings += compare_accuracy(config, titles, judged)
    if faults:
        raise bad_input(f"{len(faults)} lines were left out, the first: {faults[0]}")
    findings += _quality_findings(config, pairs, judged, qualities(row_lists[-1]))
    if config.is_gate and config.checkpoints is None:
        findings += _not_compared(row_lists, pairs, judged)
    error = failure(findings)
    if error is not None:
        raise error
    if findings:
        say(f"{Verdict.GOOD}: all {len(findings)} comparisons meet their thresholds")


def _not_compared(
    row_lists: list[list[Row]], pairs: list[Pair], judged: list[AccuracyPair]
) -> list[Finding]:
    """Two files whose checkpoints have different names pass no gate by their originals alone."""
    compared = {one.checkpoint for one, _ in pairs} | {one.checkpoint for one, _ in judged}
    names = [dict.fromkeys(row.checkpoint for row in rows) for rows in row_lists]
    first, second = ([name for name in each if name != ORIGINAL] for each in names)
    if compared - {ORIGINAL} or not (first or second):
        return []
    if first and second:
        reason = (
            f"in the first only; the second has {listed(second)}. Give both files and "
            f"checkpoints=[{first[0]},{second[0]}]"
        )
        return [Finding(listed(first), Verdict.UNKNOWN, reason)]
    return [Finding(listed(first or second), Verdict.UNKNOWN, "in one of the files only")]


def _nothing_in_common(
    config: CompareConfig,
    titles: list[str],
    cell_lists: list[list[Cell]],
    row_lists: list[list[Row]],
) -> QuantlineError:
    """Names a checkpoint that is not there, else what is."""
    labels = dict.fromkeys(cell.label for cell_list in cell_lists for cell in cell_list)
    judged = (row.checkpoint for rows in row_lists for row in rows if isinstance(row, AccuracyRow))
    known = labels | dict.fromkeys(judged)
    for name in config.checkpoints or []:
        if name not in known:
            return unknown(f"checkpoints={name}", name, known)
    labels_text = ", ".join(labels) or "none"
    return bad_input(f"{' and '.join(titles)} have no workload in common; there are: {labels_text}")


def _quality_findings(
    config: CompareConfig, pairs: list[Pair], judged: list[AccuracyPair], known: Qualities
) -> list[Finding]:
    """Whether each second checkpoint keeps enough of the original's quality."""
    if config.min_recovery is None:
        return []
    rows: dict[str, Row] = {row.checkpoint: row for _, row in judged}
    ran = {cell.checkpoint for _, cell in pairs}
    rows = {name: row for name, row in rows.items() if name not in ran}
    rows |= {cell.label: cell.row for _, cell in pairs}
    return [
        quality_finding(label, known.of_row(row), config.min_recovery)
        for label, row in rows.items()
    ]


def _tried(unmatched: list[Cell], rows: list[Row]) -> list[Cell]:
    """The unmatched cells of checkpoints that the second file has rows of: it lacks a workload, or
    the checkpoint failed there."""
    checkpoints = {row.checkpoint for row in rows}
    return [cell for cell in unmatched if cell.checkpoint in checkpoints]


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


def _distinct_names(files: list[Path]) -> list[str]:
    """Two paths without their common beginning and end."""
    path_parts = [list(path.parts) for path in files]
    for end in (0, -1):
        while (
            len(path_parts[0]) > 1 < len(path_parts[1]) and path_parts[0][end] == path_parts[1][end]
        ):
            for names in path_parts:
                names.pop(end)
    return [str(Path(*names)) for names in path_parts]
