"""The pairs of cells that `evaluate.compare` compares, and the metric by which it does."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from conf.errors import bad_input, unknown
from conf.files.outputs import is_same_file
from evaluate.results.cells import Cell
from evaluate.results.merging import row_identity
from evaluate.results.restart_noise import Noise, cell_ratio
from evaluate.results.significance import Ratio

SECONDS, RATE = "_s", "_per_s"
SMALLER_IS_BETTER = ("energy_j", "joules_per_output_token")
LARGER_IS_BETTER = ("good_share",)
Pair = tuple[Cell, Cell]


@dataclass(frozen=True)
class Metric:
    """The value by which two cells are compared. Without a name it is the time that ranks setups
    in the report: where requests arrive by themselves, a run takes as long as they arrive."""

    name: str = ""

    def check(self, measured: Collection[str]) -> None:
        """Raises where no run has the value, or it does not say which of two is better."""
        if not self.name:
            return
        if self.name not in measured:
            raise unknown(f"value={self.name}", self.name, filter(_is_comparable, measured))
        if not _is_comparable(self.name):
            raise bad_input(f"value={self.name}: neither more nor less of it is better")

    @property
    def is_better_larger(self) -> bool:
        return self.name.endswith(RATE) or self.name in LARGER_IS_BETTER

    def median(self, cell: Cell) -> float | None:
        summary = cell.summary(self.name or cell.ranked_by)
        return None if summary is None else summary.median

    def ratio(self, pair: Pair, noise: Noise) -> Ratio | None:
        """How many times as fast the second is as the first."""
        one, other = pair
        faster, slower = (one, other) if self.is_better_larger else (other, one)
        return cell_ratio(faster, slower, noise, one.workload_name, self.name)


def _is_comparable(name: str) -> bool:
    return name.endswith(SECONDS) or name in (*SMALLER_IS_BETTER, *LARGER_IS_BETTER)


def check_distinct(files: list[Path], checkpoints: list[str] | None) -> None:
    """Raises where both sides are the same: a gate would let it pass."""
    if checkpoints is not None:
        if len(set(checkpoints)) < len(checkpoints):
            raise bad_input(f"checkpoints=[{','.join(checkpoints)}]: is the same one twice")
    elif is_same_file(*files):
        raise bad_input(f"results=[{','.join(map(str, files))}]: is the same file twice")


def has_common_runs(pair: Pair) -> bool:
    """Whether both have a run that is the same: a file may be a copy of the other with more."""
    runs = [{row_identity(row) for row in cell.valid} for cell in pair]
    return bool(runs[0] & runs[1])


def two_files(first: list[Cell], second: list[Cell]) -> tuple[list[Pair], list[Cell]]:
    """Pairs of cells of the same checkpoint under the same workload, and the first file's cells
    without one. If a file has several of them, their options must be equal, too."""
    pairs, unmatched = [], []
    for one in first:
        matching = [other for other in second if _has_same_workload(one, other)]
        same_workload = [other for other in first if _has_same_workload(one, other)]
        if len(matching) > 1 or len(same_workload) > 1:
            matching = [other for other in matching if _has_same_options(one, other)]
        if not matching:
            unmatched.append(one)
        pairs += [(one, other) for other in matching[:1]]
    return pairs, unmatched


def two_checkpoints(cells: list[Cell], first: str, second: str) -> tuple[list[Pair], list[Cell]]:
    """Pairs of cells under the same workload, and the first checkpoint's cells without one. Where
    the second ran it with the same device, engine and options, only those cells are paired."""
    ones, others = ([cell for cell in cells if cell.label == name] for name in (first, second))
    pairs = []
    for one in ones:
        same_workload = [other for other in others if one.workload_name == other.workload_name]
        alike = [other for other in same_workload if _has_same_options(one, other)]
        pairs += [(one, other) for other in alike or same_workload]
    matched = {id(one) for one, _ in pairs}
    return pairs, [one for one in ones if id(one) not in matched]


def _has_same_workload(one: Cell, other: Cell) -> bool:
    return one.checkpoint == other.checkpoint and one.workload_name == other.workload_name


def _has_same_options(one: Cell, other: Cell) -> bool:
    names = ("device", "engine", "engine_options", "variables")
    options = [cell.row.environment.facts(*names) for cell in (one, other)]
    return options[0] == options[1]
