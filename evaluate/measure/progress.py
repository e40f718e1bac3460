"""Progress of an evaluation: the current run, the time left and the table so far. Without a
terminal, plain lines."""

import time
from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from conf.durations import duration
from conf.terminal import plain_console, say
from evaluate.measure.workload import PROFILE, WARM_UP
from evaluate.results.rows import Row

UNTIMED = {WARM_UP: "warming up", PROFILE: "profiling"}
LINES_EVERY = 8


class ProgressDisplay:
    """Shows an evaluation as it goes."""

    def __init__(
        self, runs: int, starts: int, table: Callable[[list[Row]], RenderableType]
    ) -> None:
        self.runs, self.starts, self.table = runs, starts, table
        self.rows: list[Row] = []
        self.done = 0
        self.start = time.monotonic()
        self.loading_since: float | None = None
        self.loads: list[float] = []
        self.status = ""
        console = plain_console(stderr=True)
        self.live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> "ProgressDisplay":
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.update(Text(""), refresh=True)
            self.live.stop()

    def say(self, text: str) -> None:
        self.status = text
        if self.live:
            self._draw()
        else:
            say(text)

    def loading(self, text: str) -> None:
        self.loading_since = time.monotonic()
        self.say(text)

    def _loaded(self) -> None:
        if self.loading_since is not None:
            self.loads.append(time.monotonic() - self.loading_since)
            self.loading_since = None

    def running(self, checkpoint: str, measure: str, repeat: int) -> None:
        self._loaded()
        run_name = UNTIMED.get(repeat, f"run {repeat + 1}")
        self.say(f"{checkpoint}: {measure}, {run_name}{self._left()}")

    def judging(self, checkpoint: str, window: int, windows: int) -> None:
        self._loaded()
        if self.live or window % LINES_EVERY == 0:
            self.say(f"{checkpoint}: reading text, window {window + 1} of {windows}{self._left()}")

    def row(self, row: Row) -> None:
        self.rows.append(row)
        self.done += 1
        if self.live:
            self._draw()

    def note(self, text: str) -> None:
        """Prints a line that stays on the screen."""
        if self.live:
            self.live.console.print(text, soft_wrap=True, highlight=False)
        else:
            say(text)

    def _left(self) -> str:
        """The time left, estimated from the mean time of finished runs and engine starts."""
        if not self.done:
            return f" ({self.runs} runs in all)"
        measuring = time.monotonic() - self.start - sum(self.loads)
        seconds = measuring / self.done * (self.runs - self.done)
        if self.loads:
            seconds += sum(self.loads) / len(self.loads) * (self.starts - len(self.loads))
        return f" ({self.done} of {self.runs} runs done, about {duration(seconds)} left)"

    def _draw(self) -> None:
        assert self.live is not None
        tables = [self.table(self.rows)] if self.rows else []
        self.live.update(Group(Text(self.status), *tables), refresh=True)
