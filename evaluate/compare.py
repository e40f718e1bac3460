"""`python -m evaluate.compare results=[A,B]`: faster, slower, or no difference, with an interval.

Two files of results, cell by cell; or two checkpoints of the results given. By an interval on the
ratio of their latencies, never by bare means.
"""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from conf.app import run
from conf.compose import Command
from conf.errors import bad_input, unknown
from conf.report_schema import CompareConfig
from conf.terminal import say
from evaluate.cells import Cell, cells, set_apart
from evaluate.results import current, read
from evaluate.summary import Ratio, compare

NARROWEST_TABLE = 120
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
        together = [cell for part in found for cell in part]
        set_apart(together)
        pairs = _two_checkpoints(together, *config.checkpoints)
        titles = list(config.checkpoints)
    else:
        pairs = _two_files(found[0], found[1])
        titles = [str(path) for path in files]
    if not pairs:
        labels = dict.fromkeys(cell.label for part in found for cell in part)
        known = ", ".join(labels) or "none"
        raise bad_input(f"{' and '.join(titles)} have no load in common; there are: {known}")
    known_values = {name for pair in pairs for cell in pair for name in cell.names}
    if config.value not in known_values:
        raise unknown(f"value={config.value}", config.value, known_values)
    first = [] if config.checkpoints else ["checkpoint"]
    table = Table("scenario", *first, *titles, "times as fast", "95 % interval", "verdict")
    for one, other in pairs:
        table.add_row(*_line(one, other, config))
    screen = Console()
    screen.width = max(screen.width, NARROWEST_TABLE)
    screen.print(table)


def _cells(path: Path) -> list[Cell]:
    if not path.is_file():
        raise bad_input(f"results={path}: there is no such file")
    rows, faults = read(path)
    for fault in faults:
        say(fault)
    return cells(current(rows))


def _two_files(ones: list[Cell], others: list[Cell]) -> list[tuple[Cell, Cell]]:
    """Cells of the same checkpoint under the same load; where a file has several of them, those
    that are called the same."""
    pairs = []
    for one in ones:
        matching = [other for other in others if _same_load(one, other)]
        alike = [other for other in ones if _same_load(one, other)]
        if len(matching) > 1 or len(alike) > 1:
            matching = [other for other in matching if other.label == one.label]
        if not matching:
            say(f"{one.measure}: {one.label} stands in one file only, or under another load")
        pairs += [(one, other) for other in matching[:1]]
    return pairs


def _same_load(one: Cell, other: Cell) -> bool:
    return (one.measure, one.checkpoint, one.load) == (other.measure, other.checkpoint, other.load)


def _two_checkpoints(found: list[Cell], first: str, second: str) -> list[tuple[Cell, Cell]]:
    return [
        (one, other)
        for one in found
        for other in found
        if (one.label, other.label) == (first, second)
        and (one.measure, one.load) == (other.measure, other.load)
    ]


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
