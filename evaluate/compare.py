"""`python -m evaluate.compare results=[A,B]`: faster, slower, or no difference, with an interval.

Two files of results, cell by cell; or two checkpoints of the results given. By an interval on the
ratio of their latencies, never by bare means.
"""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from conf.app import run
from conf.compose import Command
from conf.errors import bad_input
from conf.schema import CompareConfig
from conf.terminal import say
from evaluate.cells import Cell, cells
from evaluate.results import current, read
from evaluate.summary import Ratio, compare

COMMAND = Command(
    "compare",
    CompareConfig,
    (
        "python -m evaluate.compare results=[before.jsonl,after.jsonl]",
        "python -m evaluate.compare results=[a.jsonl] checkpoints=[original,w8a8_smooth_gptq]",
        "python -m evaluate.compare results=[a.jsonl,b.jsonl] value=ttft_last_s",
    ),
    module="evaluate.compare",
)


def main(config: CompareConfig) -> None:
    files = [Path(entry).expanduser() for entry in config.results]
    found = [_cells(path) for path in files]
    if config.checkpoints is not None:
        together = {place: cell for part in found for place, cell in part.items()}
        pairs = _two_checkpoints(together, *config.checkpoints)
        titles = config.checkpoints
    else:
        pairs = _two_files(*found)
        titles = [str(path) for path in files]
    if not pairs:
        known = ", ".join(dict.fromkeys(label for part in found for _, label in part)) or "none"
        raise bad_input(f"{' and '.join(titles)} have no scenario in common; there are: {known}")
    titles = titles if config.checkpoints else ["checkpoint", *titles]
    table = Table("scenario", *titles, "times as fast", "95 % interval", "verdict")
    for one, other in pairs:
        table.add_row(*_line(one, other, config))
    screen = Console()
    screen.width = max(screen.width, 120)
    screen.print(table)


def _cells(path: Path) -> dict[tuple[str, str], Cell]:
    """A file's cells, by scenario and name."""
    if not path.is_file():
        raise bad_input(f"results={path}: there is no such file")
    rows, faults = read(path)
    for fault in faults:
        say(fault)
    return {(cell.measure, cell.label): cell for cell in cells(current(rows))}


def _two_files(
    one: dict[tuple[str, str], Cell], other: dict[tuple[str, str], Cell]
) -> list[tuple[Cell, Cell]]:
    return [(cell, other[place]) for place, cell in one.items() if place in other]


def _two_checkpoints(
    found: dict[tuple[str, str], Cell], first: str, second: str
) -> list[tuple[Cell, Cell]]:
    measures = dict.fromkeys(measure for measure, _ in found)
    places = [((measure, first), (measure, second)) for measure in measures]
    return [(found[one], found[other]) for one, other in places if {one, other} <= set(found)]


def _line(one: Cell, other: Cell, config: CompareConfig) -> list[str]:
    figures = [cell.summary(config.value) for cell in (one, other)]
    shown = [f"{figure.median:.4g}" if figure else "none" for figure in figures]
    ratio = compare(other.values(config.value), one.values(config.value))
    ranked = all(cell.is_ranked(config.max_spread) for cell in (one, other))
    return [
        one.measure,
        *([] if config.checkpoints else [one.label]),
        *shown,
        *_words(ratio, ranked),
    ]


def _words(ratio: Ratio | None, ranked: bool) -> list[str]:
    if ratio is None:
        return ["", "", "cannot tell: fewer than two valid runs"]
    interval = f"{ratio.low:.3f} to {ratio.high:.3f}"
    if not ranked:
        return [f"{ratio.ratio:.3f}", interval, "cannot tell: too much spread"]
    verdict = "no difference"
    if ratio.differs:
        verdict = "faster" if ratio.ratio > 1 else "slower"
    return [f"{ratio.ratio:.3f}", interval, verdict]


if __name__ == "__main__":
    run(COMMAND, main)
