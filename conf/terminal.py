"""Progress on standard error for the user, and the output of libraries in a log file."""

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from conf.durations import duration
from conf.entry import as_called
from conf.errors import ENVIRONMENT_ERRNOS, environment_failure
from conf.escaping import escaped

Item = TypeVar("Item")
SECONDS_BETWEEN_LINES = 10.0
MOST_NAMED = 3


def say(message: str) -> None:
    """Prints a line for the user to standard error; standard output is for results."""
    print(escaped(as_called(message)), file=sys.stderr, flush=True)


def listed(names: list[str], most: int = MOST_NAMED) -> str:
    """The first names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


class Lines(Progress):
    """Progress for a log or a pipe: a line every few seconds instead of a bar."""

    def start(self) -> None:
        self._due = 0.0

    def stop(self) -> None:
        pass

    def update(self, task_id: TaskID, **changes: Any) -> None:
        super().update(task_id, **changes)
        task = self._tasks[task_id]
        if time.monotonic() < self._due and not task.finished:
            return
        self._due = time.monotonic() + SECONDS_BETWEEN_LINES
        time_left = f", {duration(task.time_remaining)} left" if task.time_remaining else ""
        total = f"{task.total:.0f}" if task.total else "?"
        line = f"{task.description}: {task.completed:.0f} of {total}{time_left}"
        self.console.print(line, soft_wrap=True, highlight=False)


WIDE = 10_000


def plain_console(**options: Any) -> Console:
    """A console that shows names as they are: `[x]` and `:x:` in them are no markup."""
    return Console(markup=False, emoji=False, **options)


def table_console(narrowest: int) -> Console:
    """A console for tables, never narrower than this: names cut short would all look alike. In a
    file or a pipe a table is as wide as its content."""
    console = plain_console()
    is_free = not console.is_terminal and "COLUMNS" not in os.environ
    console.width = WIDE if is_free else max(console.width, narrowest)
    return console


def progress(console: Console | None = None) -> Progress:
    """A bar with its count, the time spent and the time left; lines where there is no terminal."""
    console = console or plain_console(stderr=True)
    if not console.is_terminal:
        return Lines(console=console)
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
    )


def progress_bar(items: Iterable[Item], description: str, total: int) -> Iterator[Item]:
    with progress() as bars:
        task = bars.add_task(description, total=total)
        for number, item in enumerate(items, start=1):
            yield item
            bars.update(task, completed=number)


@contextmanager
def library_output_to(log_file: Path) -> Iterator[Console]:
    """Sends all output of this process to a file and yields a console on the real terminal.

    Libraries log through Python's logging, loguru, tqdm, warnings and C++; only the file
    descriptors catch them all.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    terminal, output = os.dup(2), os.dup(1)
    with (
        _naming_log(log_file),
        os.fdopen(terminal, "w", encoding="utf-8") as screen,
        log_file.open("ab") as log,
    ):
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            yield plain_console(file=screen, force_terminal=os.isatty(terminal))
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os.dup2(output, 1)
            os.dup2(terminal, 2)
            os.close(output)


@contextmanager
def _naming_log(log_file: Path) -> Iterator[None]:
    """Names the log in an environment error without a file name: libraries print to the log."""
    try:
        yield
    except OSError as error:
        if error.errno not in ENVIRONMENT_ERRNOS or error.filename not in (None, str(log_file)):
            raise
        raise environment_failure(f"{log_file}: could not be written ({error.strerror})") from error
