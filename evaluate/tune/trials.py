"""Trials, what runs them, and the time that they may take."""

import math
import statistics
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from evaluate.results.significance import Start
from evaluate.tune.space import Assignment

LEAST_RUNS = 2  # a trial with fewer valid runs has failed
SAFETY = 1.5
"""The next batch may take so many times as long as a typical one: it may compile anew."""
SEARCH = 0
"""The number of the engine start that the search measures; later ones confirm."""


@dataclass(frozen=True)
class Trial:
    """One start of an engine with an assignment, and its valid runs."""

    assignment: Assignment
    start: Start | None = None
    """The logarithms of its times; None without a valid run."""
    runs: int = 0
    """Valid runs, outliers included."""
    failure: str = ""
    """Why it has too few valid runs."""
    is_final: bool = False
    """Whether a failure is not tried again: the settings were refused, or failed twice."""
    is_beaten: bool = False
    """Whether it was stopped early, because it was significantly slower than the best."""
    misses: str = ""
    """The latency targets that it misses; empty where it meets them, or none was given."""
    saved_s: float = 0.0
    """Seconds that its missing runs would have taken, had it not been stopped."""
    took_s: float | None = None
    """Of a trial of an earlier command: seconds of its start with all runs, if rows say them."""

    @property
    def log_time(self) -> float:
        assert self.start is not None
        return self.start.mean

    @property
    def time_s(self) -> float | None:
        return None if self.start is None else math.exp(self.start.mean)


@dataclass(frozen=True)
class TrialRequest:
    """An engine start to measure."""

    assignment: Assignment
    number: int = SEARCH
    """The number of the start."""


@dataclass(frozen=True)
class Judgement:
    """Whether settings that change answers may be served."""

    is_good: bool
    text: str


IsBeaten = Callable[[Start], bool]


class Engines(Protocol):
    """Starts engines and measures them; tests have one that makes times up."""

    def recorded(self) -> list[Trial]:
        """The search's trials that the results hold already, oldest first, finished or not."""

    def measure(
        self, requests: Sequence[TrialRequest], is_beaten: IsBeaten
    ) -> Generator[Trial, None, None]:
        """Measures the missing runs of these starts, and yields each trial when it is done. A
        failure is a trial with its reason. `is_beaten` is asked after every run, and ends a
        trial."""

    def confirming_starts(self, best: Assignment, count: int) -> Sequence[int]:
        """The numbers of the starts that compare these settings with the default: those of an
        earlier command that measured both, else new ones."""

    def judge(self, assignment: Assignment) -> Judgement:
        """Compares answers with those of the default settings."""


@dataclass
class Budget:
    """The wall time of a command, and what its parts took."""

    seconds: float
    clock: Callable[[], float] = time.monotonic
    durations: list[float] = field(default_factory=list)
    """Seconds of each batch of starts, with those of the runs that racing saved."""
    earlier: list[float] = field(default_factory=list)
    """The same of single starts of earlier commands. They count until a batch was measured here."""

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Counts from now on: the search begins. What comes before it, as fetching a model, is not
        part of it."""
        self.begin = self.clock()

    @property
    def left(self) -> float:
        return self.seconds - (self.clock() - self.begin)

    @contextmanager
    def batch(self) -> Iterator[list[Trial]]:
        """Takes the time of a batch of starts, whose trials are added to the list. Starts that
        confirm have all runs, so those that racing saved are counted. A batch without a valid run
        says nothing of that."""
        begin = self.clock()
        trials: list[Trial] = []
        yield trials
        if any(trial.start is not None for trial in trials):
            saved = sum(trial.saved_s for trial in trials)
            self.durations.append(self.clock() - begin + saved)

    def allows(self, later_batches: int) -> bool:
        """Whether one more batch, and those that must follow, very likely end in time. Where
        nothing is known of their durations, a batch is allowed until the budget is over."""
        is_known = bool(self.durations or self.earlier)
        return self.left >= (self.needed(later_batches) if is_known else 0.0)

    def needed(self, later_batches: int) -> float:
        """Seconds that one more batch, and those that must follow, very likely take at most: each
        with all runs."""
        return (SAFETY + later_batches) * statistics.median(self.durations or self.earlier)
