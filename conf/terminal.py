"""Progress a person can read, on standard error, and everybody else's chatter in a log file."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Item = TypeVar("Item")


def say(message: str) -> None:
    """One line for the person who waits; standard output stays free for results."""
    print(message, file=sys.stderr, flush=True)


def progress(console: Console | None = None) -> Progress:
    """A bar with its count, the time spent and the time left."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console or Console(stderr=True),
    )


def progress_bar(items: Iterable[Item], description: str, total: int) -> Iterator[Item]:
    with progress() as bars:
        yield from bars.track(items, total=total, description=description)


@contextmanager
def chatter_to(log_file: Path) -> Iterator[Console]:
    """Sends all output of this process to a file and yields a console on the real terminal.

    Libraries log through Python's logging, loguru, tqdm, warnings and C++; only the file
    descriptors catch them all.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    terminal, output = os.dup(2), os.dup(1)
    with log_file.open("ab") as log, os.fdopen(terminal, "w", encoding="utf-8") as screen:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            yield Console(file=screen, force_terminal=os.isatty(terminal))
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(output, 1)
            os.dup2(terminal, 2)
            os.close(output)
