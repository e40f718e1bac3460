"""Merges the rows of several results files."""

from collections import defaultdict
from pathlib import Path

from conf.errors import bad_input
from evaluate.results.lock import check_results_file
from evaluate.results.results_file import read
from evaluate.results.rows import Row, SpeedRow, TrialRow, current, rounded

DEMO = Path("checkpoints/demo.jsonl")  # of `make demo`


def merged_rows(files: list[Path]) -> tuple[list[Row], list[str], list[str]]:
    """The rows that count, the faults of unreadable lines, and notes for the reader. A row that is
    in two files counts once. Sessions that measured the same key get different numbers."""
    unique_rows: dict[tuple[str, ...], tuple[int, Row]] = {}
    faults: list[str] = []
    count = 0
    for number, path in enumerate(files):
        if not path.is_file():
            check_results_file(path)
            hint = f"; make demo wrote results={DEMO}" if DEMO.is_file() and path != DEMO else ""
            raise bad_input(f"results={path}: there is no such file{hint}")
        file_rows, file_faults = read(path)
        faults += file_faults
        count += len(file_rows)
        for row in file_rows:
            unique_rows.setdefault(row_identity(row), (number, row))
    notes = []
    if len(unique_rows) < count:
        notes.append(f"{count - len(unique_rows)} rows stand there more than once and count once")
    file_of = {id(row): number for number, row in unique_rows.values()}
    rows = [row for _, row in unique_rows.values()]
    current_rows = current(rows)
    if len(current_rows) < len(rows):
        older = len(rows) - len(current_rows)
        notes.append(f"{older} rows were measured again (force=true) and no longer count")
    newest = _newest_weights(current_rows)
    if len(newest) < len(current_rows):
        older = len(current_rows) - len(newest)
        notes.append(f"{older} rows ran on weights made up in an older way and do not count")
    sessions = _keep_sessions_apart(newest, file_of)
    if sessions:
        notes.append(
            f"{sessions} cells were measured in more than one session; each session is shown apart"
        )
    return newest, faults, notes


def row_identity(row: Row) -> tuple[str, ...]:
    """Identifies a row: its names, its time, and one of its values with all stored digits."""
    figures = (rounded(value) for value in vars(row.values).values() if isinstance(value, float))
    figure = next(figures, row.reason)
    names = (row.key, row.kind, row.model, row.checkpoint, row.measure)
    return *names, *map(str, (row.start, row.repeat, row.generation, row.time, figure))


def _newest_weights(rows: list[Row]) -> list[Row]:
    """The rows without those on random weights of an older format, where newer ones exist for the
    same model, device and engine."""

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
    """Numbers the sessions of each key and returns how many keys have more than one. A second
    valid run with the same start and repeat opens a new session: for all rows of its file, or,
    within one file, for all later rows."""
    rows_by_file: dict[str, dict[int, list[SpeedRow]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if isinstance(row, SpeedRow):
            rows_by_file[row.key][file_of[id(row)]].append(row)
    searches_by_file: dict[str, dict[int, list[TrialRow]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if isinstance(row, TrialRow):
            searches_by_file[row.key][file_of[id(row)]].append(row)
    return sum(
        [
            *(_number_sessions([*files.values()]) > 1 for files in rows_by_file.values()),
            *(_number_searches([*files.values()]) > 1 for files in searches_by_file.values()),
        ]
    )


def _number_searches(files: list[list[TrialRow]]) -> int:
    """The same for the trials of one key: a search that another file has, too, opens a session."""
    session, searched = 1, set[tuple[int, int]]()
    for rows in files:
        own = {(row.start, row.repeat) for row in rows if not row.invalid}
        if searched & own:
            session, searched = session + 1, set()
        searched |= own
        for row in rows:
            row.session = session
    return session


def _number_sessions(files: list[list[SpeedRow]]) -> int:
    """Numbers the sessions of one key, whose rows come by file. Returns their count."""
    session, measured_runs = 1, set[tuple[int, int]]()
    for rows in files:
        if measured_runs & {(row.start, row.repeat) for row in rows if not row.invalid}:
            session, measured_runs = session + 1, set()
        for row in rows:
            run = (row.start, row.repeat)
            if not row.invalid and run in measured_runs:
                session, measured_runs = session + 1, set()
            if not row.invalid:
                measured_runs.add(run)
            row.session = session
    return session
