"""Engines that make times up: what a search does with them can be known beforehand."""

import math
import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace

from evaluate.results.significance import Start
from evaluate.tune.search import Outcome, Search, SearchOptions
from evaluate.tune.settings import Need
from evaluate.tune.space import DEFAULT, Assignment, Situation, Space, space_of
from evaluate.tune.trials import SEARCH, Budget, IsBeaten, Judgement, Trial, TrialRequest

SETTINGS = ["performance_mode", "async_scheduling", "custom_ops", "kv_cache_dtype"]
START_S, RUN_S = 60.0, 1.0


def space(*names: str) -> Space:
    situation = Situation(frozenset(Need))
    return space_of(names or SETTINGS[:3], situation, judges="kv_cache_dtype" in names)


@dataclass
class MadeUpEngines:
    """Engines whose true speed-up is a function of their settings."""

    speed_up: Callable[[TrialRequest], float] = lambda _: 1.0
    failing: Callable[[Assignment], str] = lambda _: ""
    missing: Callable[[TrialRequest], str] = lambda _: ""
    repeats: int = 5
    start_noise: float = 0.002
    run_noise: float = 0.001
    run_s: float = RUN_S
    seed: int = 0
    earlier: list[Trial] = field(default_factory=list)
    is_good: bool = True
    now: float = 0.0
    requests: list[TrialRequest] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    judged: list[Assignment] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def recorded(self) -> list[Trial]:
        return self.earlier

    def measure(
        self, requests: Sequence[TrialRequest], is_beaten: IsBeaten
    ) -> Generator[Trial, None, None]:
        self.now += START_S
        self.batches.append(len(requests))
        for request in requests:
            yield self._measured(request, is_beaten)

    def _measured(self, request: TrialRequest, is_beaten: IsBeaten) -> Trial:
        self.requests.append(request)
        if reason := self.failing(request.assignment):
            return Trial(request.assignment, failure=reason)
        mean = -math.log(self.speed_up(request)) + self.random.gauss(0, self.start_noise)
        logs: list[float] = []
        beaten = False
        while len(logs) < self.repeats and not beaten:
            self.now += self.run_s
            logs.append(mean + self.random.gauss(0, self.run_noise))
            beaten = len(logs) > 1 and is_beaten(Start(tuple(logs)))
        saved_s = (self.repeats - len(logs)) * self.run_s
        start = Start(tuple(logs))
        misses = self.missing(request)
        trial = Trial(request.assignment, start, len(logs), is_beaten=beaten, misses=misses)
        return replace(trial, saved_s=saved_s)

    def confirming_starts(self, best: Assignment, count: int) -> Sequence[int]:
        return range(SEARCH + 1, SEARCH + 1 + count)

    def judge(self, assignment: Assignment) -> Judgement:
        self.judged.append(assignment)
        return Judgement(self.is_good, "accuracy: made up")


def searched(
    engines: MadeUpEngines,
    settings: Space | None = None,
    seconds: float = 3600.0,
    **options: int,
) -> Outcome:
    chosen = SearchOptions(
        **{"repeats": engines.repeats, "confirm_starts": 2} | options  # type: ignore[arg-type]
    )
    budget = Budget(seconds, lambda: engines.now)
    return Search(settings or space(), engines, budget, chosen).run()


def faster(**factors: float) -> Callable[[TrialRequest], float]:
    """The speed-up of each value of a setting, by label."""
    return lambda request: math.prod(
        factors.get(f"{name}_{label}", 1.0) for name, label in request.assignment
    )


def whole(assignment: Assignment = DEFAULT, time_s: float = 1.0, runs: int = 5) -> Trial:
    """A trial of an earlier command."""
    logs = tuple(math.log(time_s) + 0.001 * (run % 2) for run in range(runs))
    return Trial(assignment, Start(logs), runs)
