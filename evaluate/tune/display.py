"""Shows a search: a bar with trial, time left and best so far, and the table at the end."""

import math

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from conf.durations import duration
from evaluate.measure.progress import UNTIMED, ProgressDisplay
from evaluate.tune.search import Outcome
from evaluate.tune.space import DEFAULT, Assignment, text_of
from evaluate.tune.trials import SEARCH, Budget, Trial, TrialRequest

BAR_WIDTH = 40
REFRESHES = 1  # a second


class TuneDisplay(ProgressDisplay):
    """The progress of a search within its budget."""

    def __init__(self, budget: Budget) -> None:
        super().__init__(0, 0, lambda _: Text(""))
        self.budget = budget
        self.finished = 0
        self.begun: list[TrialRequest] = []
        self.best = ""
        self.current = ""
        self.is_done = False
        if self.live:  # drawn again while an engine loads, which takes a minute
            console = self.live.console
            self.live = Live(
                console=console, refresh_per_second=REFRESHES, get_renderable=self._picture
            )

    def __exit__(self, *_: object) -> None:
        self.is_done = True
        super().__exit__()

    def begin(self, request: TrialRequest) -> None:
        """The next lines are about this start of an engine."""
        if request not in self.begun:
            self.begun.append(request)
        number = sum(one.number == SEARCH for one in self.begun[: self.begun.index(request) + 1])
        name = f"trial {self.finished + number}"
        if request.number != SEARCH:
            name = f"confirming, start {request.number}"
        self.current = f"{name} ({text_of(request.assignment)})"

    def judge(self, assignment: Assignment) -> None:
        """The next lines are about the accuracy of these settings."""
        self.current = f"judging answers ({text_of(assignment)})"

    def learned(self, trials: list[Trial], best: Trial | None) -> None:
        """What is known after each trial."""
        if not self.begun:
            self.finished = len(trials)  # of earlier commands
        default = next((one for one in trials if one.assignment == DEFAULT), None)
        factor = None if best is None else _times_as_fast(best, default)
        if best is not None and factor is not None:
            self.best = f"best so far {factor:.3f} ({text_of(best.assignment)})"

    def loading(self, text: str) -> None:
        super().loading(f"{self.current}: {text}{self._left()}")

    def running(self, checkpoint: str, measure: str, repeat: int) -> None:
        self._loaded()
        run_name = UNTIMED.get(repeat, f"run {repeat + 1}")
        self.say(f"{self.current}: {run_name}{self._left()}")

    def _left(self) -> str:
        """The end of a line; a terminal has a bar for it."""
        return "" if self.live else f" ({self._summary()})"

    def _summary(self) -> str:
        best = f", {self.best}" if self.best else ""
        return f"{duration(self.budget.left)} left{best}"

    def _draw(self) -> None:
        assert self.live is not None
        self.live.refresh()

    def _picture(self) -> RenderableType:
        if self.is_done:
            return Text("")
        elapsed = self.budget.seconds - self.budget.left
        bar = ProgressBar(self.budget.seconds, elapsed, width=BAR_WIDTH)
        row = Table.grid(padding=(0, 1))
        row.add_row(bar, Text(self._summary()))
        return Group(Text(self.status), row)


def trials_table(outcome: Outcome, value: str) -> Table:
    """All trials, fastest first; failed ones last. Times of the search flatter the best."""
    table = Table("trial", value, "times as fast", "runs", "ended", "settings")
    numbers = {trial.assignment: place for place, trial in enumerate(outcome.trials, start=1)}
    default = next((one for one in outcome.trials if one.assignment == DEFAULT), None)

    def order(trial: Trial) -> tuple[bool, float]:
        return bool(trial.failure), 0.0 if trial.start is None else trial.log_time

    for trial in sorted(outcome.trials, key=order):
        time_s = trial.time_s
        factor = _times_as_fast(trial, default)
        table.add_row(
            str(numbers[trial.assignment]),
            "" if time_s is None else f"{time_s:.4g}",
            "" if factor is None else f"{factor:.3f}",
            str(trial.runs),
            _ending(trial),
            Text(text_of(trial.assignment)),
        )
    return table


def _times_as_fast(trial: Trial, default: Trial | None) -> float | None:
    """The speed-up over the default; None where one of the two was not measured."""
    if default is None or default.start is None or trial.start is None:
        return None
    return math.exp(default.log_time - trial.log_time)


def _ending(trial: Trial) -> Text:
    if trial.failure:
        return Text(f"failed: {trial.failure}")
    if trial.is_beaten:
        return Text("beaten, stopped early")
    return Text(f"whole; {trial.misses}" if trial.misses else "whole")


def sentences(outcome: Outcome, context: int | None = None) -> list[str]:
    """What was found, for people. `context` is the longest one that the settings allow, or None."""
    lines = []
    if outcome.judgement is not None:
        lines.append(outcome.judgement.text)
    if outcome.gain is not None:
        gain = outcome.gain
        lines.append(
            f"{text_of(outcome.best)}: {gain.ratio:.3f} times as fast as the default settings "
            f"({gain.low:.3f} to {gain.high:.3f} at 95 %, in fresh starts of both)"
        )
    if outcome.targets:
        lines.append(outcome.targets)
    if context is not None:
        lines.append(
            f"with these settings the engine has max_model_len={context}, as it was measured, and "
            "refuses longer requests"
        )
    if outcome.reason:
        lines.append(f"{outcome.reason}; the default settings are kept")
    return lines
