"""The rows of several files of results, put together: what counts, and what is apart."""

from collections import defaultdict
from pathlib import Path

from conf.errors import bad_input
from evaluate.results.results_file import read
from evaluate.results.rows import Row, SpeedRow, current, rounded


def merged_rows(files: list[Path]) -> tuple[list[Row], list[str], list[str]]:
    """The rows that count, what is wrong with lines, and what to know. A row that stands in two
    files counts once; another session under the same key stays apart from the first."""
    places: dict[tuple[str, ...], tuple[int, Row]] = {}
    faults: list[str] = []
    count = 0
    for number, path in enumerate(files):
        if not path.is_file():
            raise bad_input(f"results={path}: there is no such file")
        found, wrong = read(path)
        faults += wrong
        count += len(found)
        for row in found:
            places.setdefault(_mark(row), (number, row))
    notes = []
    if len(places) < count:
        notes.append(f"{count - len(places)} rows stand there more than once and count once")
    file_of = {id(row): number for number, row in places.values()}
    rows = [row for _, row in places.values()]
    counting = current(rows)
    if len(counting) < len(rows):
        older = len(rows) - len(counting)
        notes.append(f"{older} rows were measured again (force=true) and no longer count")
    newest = _newest_weights(counting)
    if len(newest) < len(counting):
        older = len(counting) - len(newest)
        notes.append(f"{older} rows ran on weights made up in an older way and do not count")
    sessions = _keep_sessions_apart(newest, file_of)
    if sessions:
        notes.append(
            f"{sessions} cells were measured in more than one session; each session is shown apart"
        )
    return newest, faults, notes


def _mark(row: Row) -> tuple[str, ...]:
    """What no other row has: beside names, one of its values to the last digit that is kept."""
    figures = (rounded(value) for value in vars(row.values).values() if isinstance(value, float))
    figure = next(figures, row.reason)
    names = (row.key, row.kind, row.model, row.checkpoint, row.measure)
    return *names, *map(str, (row.start, row.repeat, row.generation, row.time, figure))


def _newest_weights(rows: list[Row]) -> list[Row]:
    """Without what ran on made-up weights of an older format than others of its model did there."""

    def place(row: Row) -> tuple[str, ...]:
        return row.model, str(row.environment.device), str(row.environment.engine)

    newest: dict[tuple[str, ...], int] = defaultdict(int)
    for row in rows:
        newest[place(row)] = max(newest[place(row)], row.environment.made_up or 0)
    return [
        row
        for row in rows
        if not row.environment.has_random_weights
        or (row.environment.made_up or 0) == newest[place(row)]
    ]


def _keep_sessions_apart(rows: list[Row], file_of: dict[int, int]) -> int:
    """A repeat that was valid already opens another session of its key: with all that its file
    has of it, or, within one file, with all that follows. Numbers them."""
    parts: dict[str, dict[int, list[SpeedRow]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if isinstance(row, SpeedRow):
            parts[row.key][file_of[id(row)]].append(row)
    return sum(_number_sessions(list(files.values())) > 1 for files in parts.values())


def _number_sessions(files: list[list[SpeedRow]]) -> int:
    """Of one key, by file; how many there are."""
    session, held = 1, set[tuple[int, int]]()
    for rows in files:
        if held & {(row.start, row.repeat) for row in rows if not row.invalid}:
            session, held = session + 1, set()
        for row in rows:
            run = (row.start, row.repeat)
            if not row.invalid and run in held:
                session, held = session + 1, set()
            if not row.invalid:
                held.add(run)
            row.session = session
    return session
