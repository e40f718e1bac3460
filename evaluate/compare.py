"""`python -m evaluate.compare results=[A,B]`: faster, slower, or no difference, with an interval.

Two files of results, cell by cell; or two checkpoints of the results given. By an interval on the
ratio of their latencies, never by bare means; and with what else differs between two files.
"""

from collections import defaultdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from conf.app import run
from conf.compose import Command
from conf.errors import bad_input, unknown
from conf.models import MADE_UP
from conf.report_schema import CompareConfig
from conf.terminal import say
from evaluate.cells import Cell, cells, set_apart
from evaluate.noise import Noise, noise_of
from evaluate.results import Row, current, read
from evaluate.summary import Ratio, compare

NARROWEST_TABLE = 120
REPEATS_ONLY = (
    "the intervals are of repeats within one start of the engine; how much two starts of the same "
    "differ was not measured here (recipes that are the same to the engine show it)"
)
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
        found = [together]
    else:
        pairs = _two_files(found[0], found[1])
        titles = _short(files)
    if not pairs:
        labels = dict.fromkeys(cell.label for part in found for cell in part)
        known = ", ".join(labels) or "none"
        raise bad_input(f"{' and '.join(titles)} have no load in common; there are: {known}")
    known_values = {name for pair in pairs for cell in pair for name in cell.names}
    if config.value not in known_values:
        raise unknown(f"value={config.value}", config.value, known_values)
    first = [] if config.checkpoints else ["checkpoint"]
    table = Table("scenario", *first, *titles, "times as fast", "95 % interval", "verdict")
    noise = noise_of([_by_load(part) for part in found], config.value)
    for one, other in pairs:
        table.add_row(*_line(one, other, config, noise))
    screen = Console()
    screen.width = max(screen.width, NARROWEST_TABLE)
    screen.print(table)
    for difference in [] if config.checkpoints else _differences(pairs):
        say(f"{titles[0]} and {titles[1]} differ in {difference}")
    say(f"{noise}; the intervals contain it" if noise.starts else REPEATS_ONLY)


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


def _by_load(found: list[Cell]) -> dict[str, list[Cell]]:
    loads: dict[str, list[Cell]] = defaultdict(list)
    for cell in found:
        loads[_load(cell)].append(cell)
    return loads


def _load(cell: Cell) -> str:
    return f"{cell.measure} {sorted(cell.load.items())}"


def _short(files: list[Path]) -> list[str]:
    """The parts of two paths that tell them apart."""
    parts = [list(path.parts) for path in files]
    for end in (0, -1):
        while len(parts[0]) > 1 < len(parts[1]) and parts[0][end] == parts[1][end]:
            for part in parts:
                part.pop(end)
    return [str(Path(*part)) for part in parts]


def _differences(pairs: list[tuple[Cell, Cell]]) -> list[str]:
    """Of what runs depend on beside the checkpoint and the load, in the order of the runs."""
    said: dict[str, None] = {}
    for one, other in pairs:
        facts = [_facts(cell.row) for cell in (one, other)]
        for name in dict.fromkeys([*facts[0], *facts[1]]):
            values = [fact.get(name, "none") for fact in facts]
            if values[0] != values[1]:
                said[f"{name}: {values[0]} and {values[1]}"] = None
    return list(said)


def _facts(row: Row) -> dict[str, str]:
    environment = row.environment
    parts = {
        name: environment.get(name) for name in ("device", "driver", "power_limit_w", "engine")
    }
    for group in ("versions", "engine_options", "variables"):
        parts |= environment.get(group, {})
    if environment.get("weights") == "random":
        parts["the format of made-up weights"] = environment.get(MADE_UP, 0)
    return {name: str(value) for name, value in parts.items()}


def _two_checkpoints(found: list[Cell], first: str, second: str) -> list[tuple[Cell, Cell]]:
    return [
        (one, other)
        for one in found
        for other in found
        if (one.label, other.label) == (first, second)
        and (one.measure, one.load) == (other.measure, other.load)
    ]


def _line(one: Cell, other: Cell, config: CompareConfig, noise: Noise) -> list[str]:
    figures = [cell.summary(config.value) for cell in (one, other)]
    shown = [f"{figure.median:.4g}" if figure else "none" for figure in figures]
    margin = noise.margin(_load(one))
    ratio = compare(other.values(config.value), one.values(config.value), margin)
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
