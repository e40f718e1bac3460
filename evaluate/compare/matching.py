"""What two results files, or two checkpoints, have in common, and what only the first one has."""

from dataclasses import dataclass
from pathlib import Path

from evaluate.accuracy.pairs import (
    AccuracyPair,
    Side,
    accuracy_pairs,
    judged_rows,
    rows_of_side,
)
from evaluate.compare.pairs import Pair, two_checkpoints, two_files
from evaluate.results.cells import Cell, cells, kernels_of
from evaluate.results.rows import AccuracyRow, Row

NARROWEST_TABLE = 120  # columns


@dataclass(frozen=True)
class Matching:
    """The two sides of a comparison."""

    titles: list[str]
    row_lists: list[list[Row]]
    """Of both files; of two checkpoints, one list that holds them."""
    cell_lists: list[list[Cell]]
    pairs: list[Pair]
    unmatched: list[Cell]
    """The first one's cells without a partner."""
    judged: list[AccuracyPair]
    unjudged: list[AccuracyRow]
    """The first one's accuracy rows without a partner."""
    of_second: list[AccuracyRow]
    """All accuracy rows of the second one; of two files, of checkpoints that the first one has."""

    @property
    def is_of_files(self) -> bool:
        return len(self.row_lists) > 1

    @property
    def missing(self) -> list[Cell]:
        """The unmatched cells that count as not known. Of files, those of checkpoints that the
        second one has rows of: it lacks a workload, or the checkpoint failed there."""
        return [cell for cell in self.unmatched if self._is_tried(cell.checkpoint)]

    @property
    def missing_accuracy(self) -> list[AccuracyRow]:
        """The same of the accuracy rows."""
        return [row for row in self.unjudged if self._is_tried(row.checkpoint)]

    def _is_tried(self, checkpoint: str) -> bool:
        return not self.is_of_files or any(
            row.checkpoint == checkpoint for row in self.row_lists[1]
        )


def matched_files(files: list[Path], row_lists: list[list[Row]]) -> Matching:
    cell_lists = [cells(rows) for rows in row_lists]
    pairs, unmatched = two_files(cell_lists[0], cell_lists[1])
    judged, unjudged = accuracy_pairs(row_lists[0], row_lists[1])
    known = {row.checkpoint for row in row_lists[0]}
    of_second = [row for row in judged_rows(row_lists[1]) if row.checkpoint in known]
    titles = _distinct_names(files)
    return Matching(titles, row_lists, cell_lists, pairs, unmatched, judged, unjudged, of_second)


def matched_checkpoints(names: list[str], rows: list[Row]) -> Matching:
    cell_list = cells(rows)
    first, second = names
    pairs, unmatched = two_checkpoints(cell_list, first, second)
    sides = (_side(first, cell_list), _side(second, cell_list))
    judged, unjudged = accuracy_pairs(rows, rows, sides)
    of_second = rows_of_side(list(judged_rows(rows)), sides[1])
    return Matching(names, [rows], [cell_list], pairs, unmatched, judged, unjudged, of_second)


def _side(name: str, cell_list: list[Cell]) -> Side:
    """The checkpoint that a user names as its cells are, perhaps with options, or by its name."""
    rows = [cell.row for cell in cell_list if cell.label == name]
    if not rows:
        return Side(name)
    weights = {row.environment.checkpoint_sha256 for row in rows}
    kernels = {kernels_of(row) for row in rows}
    return Side(rows[0].checkpoint, frozenset(kernels), frozenset(weights))


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
