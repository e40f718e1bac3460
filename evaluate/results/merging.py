"""Merges the rows of several results files."""

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conf.errors import bad_input
from evaluate.results.lock import check_results_file
from evaluate.results.results_file import read
from evaluate.results.rows import Row, SpeedRow, TrialRow, current, rounded

DEMO = Path("checkpoints/demo.jsonl")  # of `make demo`


def merged_rows(files: list[Path]) -> tuple[list[Row], list[str], list[str]]:
    """The rows that count, the faults of unreadable lines, and notes for the reader. A row that is
    in two files counts once. Sessions that measured the same key get different numbers."""
    unique_rows: dict[tuple[str, ...], Row] = {}
    files_of: dict[int, list[int]] = defaultdict(list)
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
            kept = unique_rows.setdefault(row_identity(row), row)
            files_of[id(kept)].append(number)
    notes = []
    if len(unique_rows) < count:
        notes.append(f"{count - len(unique_rows)} rows stand there more than once and count once")
    rows = [*unique_rows.values()]
    current_rows = current(rows)
    if len(current_rows) < len(rows):
        older = len(rows) - len(current_rows)
        notes.append(f"{older} rows were measured again (force=true) and no longer count")
    newest = _newest_weights(current_rows)
    if len(newest) < len(current_rows):
        older = len(current_rows) - len(newest)
        notes.append(f"{older} rows ran on weights made up in an older way and do not count")
    sessions = _keep_sessions_apart(newest, files_of)
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


@dataclass
class Session:
    """The rows of one key that one evaluation measured."""

    rows: list[Row] = field(default_factory=list)
    runs: set[tuple[int, int]] = field(default_factory=set)
    """The start and repeat of its valid rows."""
    measured: set[tuple[Any, ...]] = field(default_factory=set)
    """What its valid rows measured: a second valid row of it is another session's."""

    def add(self, row: Row) -> None:
        self.rows.append(row)
        if not row.invalid:
            self.runs.add((row.start, row.repeat))
            self.measured.add(_measured(row))


def _measured(row: Row) -> tuple[Any, ...]:
    """What a session measures once: a run, or a rate of a search."""
    if isinstance(row, TrialRow):
        # A search that goes on with another GPU begins again there.
        card = row.environment.card
        return card, row.start, row.repeat, row.settings.rate, row.trial.of_curve
    return row.start, row.repeat


def _keep_sessions_apart(rows: list[Row], files_of: dict[int, list[int]]) -> int:
    """Numbers the sessions of each key and returns how many keys have more than one."""
    keys: dict[tuple[str, str], dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if isinstance(row, SpeedRow | TrialRow):
            for number in files_of[id(row)]:
                keys[row.kind, row.key][number].append(row)
    return sum(_number_sessions([*files.values()]) > 1 for files in keys.values())


def _number_sessions(files: list[list[Row]]) -> int:
    """Numbers the sessions of one key, whose rows come by file. Returns their count.

    A file with rows of an earlier one is a copy of it that went on: its further rows are of the
    same session. Another file that has a run of the last session opens one for all of its rows. In
    both, a second valid row of what was measured opens a session for all later rows. Files are
    taken in the order of their last rows, so the order in which they are named does not matter."""
    sessions: list[Session] = []
    session_of: dict[int, Session] = {}
    for rows in sorted(files, key=_time_of_file):
        runs = {(row.start, row.repeat) for row in rows if not row.invalid}
        in_time = sorted(rows, key=lambda row: (row.time, row_identity(row)))
        session = next((session_of[id(row)] for row in in_time if id(row) in session_of), None)
        if session is None and sessions and not runs & sessions[-1].runs:
            session = sessions[-1]
        for row in in_time:
            if id(row) in session_of:
                session = session_of[id(row)]
                continue
            if session is None or (not row.invalid and _measured(row) in session.measured):
                sessions.append(session := Session())
            session.add(row)
            session_of[id(row)] = session
    for number, session in enumerate(sessions, start=1):
        for row in session.rows:
            row.session = number
    return len(sessions)


def _time_of_file(rows: list[Row]) -> tuple[str, int, list[tuple[str, ...]]]:
    """When its last row was written. Of two copies, the one with fewer rows is the older one."""
    return max(row.time for row in rows), len(rows), sorted(map(row_identity, rows))
