"""Runs trials as an evaluation runs its checkpoints: each run is a row of the results file.

The settings are part of a row's key, so that a later command finds the trials of an earlier one.
"""

import statistics
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from uuid import uuid4

from conf.errors import BAD_INPUT, bad_input
from conf.process.endings import VALIDATION
from conf.schema.commands import AccuracyConfig, EvaluateConfig
from conf.schema.load import EngineConfig
from evaluate.measure.environment import environment
from evaluate.measure.events import Event, RunMeasured
from evaluate.measure.roofline import Rates
from evaluate.measure.side_by_side import groups, room_gib
from evaluate.pipeline import checked_folder
from evaluate.plan import Plan, Planner
from evaluate.record import EventRecorder
from evaluate.results.cells import cells
from evaluate.results.recorder import Recorder
from evaluate.results.rows import FailedRow, Row, SpeedRow, current, of_card
from evaluate.results.significance import Start
from evaluate.run import Group, Turn
from evaluate.tune.display import TuneDisplay
from evaluate.tune.earlier_rows import confirming_starts
from evaluate.tune.judging import judge_answers
from evaluate.tune.latency_targets import missed_targets
from evaluate.tune.space import DEFAULT, Assignment, Space
from evaluate.tune.target import TunedCheckpoint
from evaluate.tune.trials import LEAST_RUNS, SEARCH, IsBeaten, Judgement, Trial, TrialRequest

HUNG, SURELY_HUNG_S = 5, 3600.0
"""An engine hangs that reports nothing for so many times as long as a whole start took, or for so
long before any start is known."""
LEAST_HUNG_S = 600.0  # compiling something new may take minutes
TRIES = 2
"""Commands after whose failures settings count as failing: one may have been the machine's."""


@dataclass(frozen=True)
class PlannedTrial:
    """A trial, and what is missing of it."""

    request: TrialRequest
    config: EvaluateConfig
    plan: Plan
    name: str
    """For its log."""

    @property
    def turn(self) -> Turn:
        return Turn(self.plan, self.request.number, self.config.engine, f"-{self.name}")


@dataclass
class EngineTrials:
    """The engines of a search on this machine."""

    tuned: TunedCheckpoint
    scenario: str
    space: Space
    accuracy: AccuracyConfig
    recorder: Recorder
    display: TuneDisplay
    rates: Rates | None
    failures: dict[TrialRequest, str] = field(default_factory=dict)
    beaten: set[TrialRequest] = field(default_factory=set)
    numbers: dict[Assignment, int] = field(default_factory=dict)
    longest_s: float | None = None
    """The longest time that loading and measuring engines together took."""
    search: str = field(default_factory=lambda: uuid4().hex)
    """The name of this search in its rows."""

    def __post_init__(self) -> None:
        self.events = EventRecorder(self.recorder, self.display, self.rates, None)

    def engine(self, assignment: Assignment) -> EngineConfig:
        return self.space.engine(self.tuned.config.engine, assignment)

    def plan(self, request: TrialRequest) -> PlannedTrial:
        """The missing runs of a trial, by the results so far."""
        config = replace(
            self.tuned.config,
            engine=self.engine(request.assignment),
            starts=request.number + 1,
        )
        here = environment(config.gpu, config.engine).with_fields(search=self.search)
        before = of_card([*self.recorder.before, *self.recorder.rows], here.card)
        planner = Planner(config, here, before)
        number = self.numbers.setdefault(request.assignment, len(self.numbers) + 1)
        plan = planner.plan(self.tuned.inspected)
        return PlannedTrial(request, config, plan, f"trial-{number}")

    def recorded(self) -> list[Trial]:
        """The trials of earlier commands with the same key, on this card."""
        rows_by_assignment: dict[Assignment, list[Row]] = {}
        keys: dict[Assignment, str] = {}
        for row in self._before():
            if not isinstance(row, SpeedRow | FailedRow):
                continue
            if (row.checkpoint, row.measure) != (self.tuned.name, self.scenario):
                continue
            assignment = self.space.assignment_of(row.environment.engine_options)
            if assignment not in keys:
                keys[assignment] = self.plan(TrialRequest(assignment)).plan.keys[self.scenario]
            if row.key == keys[assignment]:
                rows_by_assignment.setdefault(assignment, []).append(row)
        trials = []
        for assignment, rows in rows_by_assignment.items():
            trial = self._trial(TrialRequest(assignment), rows)
            if isinstance(rows[-1], FailedRow) and self._is_incomplete(trial):
                trial = replace(trial, failure=rows[-1].reason, is_final=_is_final(rows))
            trial = replace(trial, took_s=self._took_s(rows))
            # Without a failure, it was interrupted or its runs are invalid: measured again.
            if trial.runs >= LEAST_RUNS or any(isinstance(row, FailedRow) for row in rows):
                trials.append(trial)
        return trials

    def _before(self) -> list[Row]:
        """The rows of earlier commands on this card."""
        config = self.tuned.config
        rows = current(self.recorder.before)
        return [] if config.force else of_card(rows, environment(config.gpu, config.engine).card)

    def confirming_starts(self, best: Assignment, count: int) -> Sequence[int]:
        """Those of an earlier command that measured both, else new ones."""
        sides = []
        for assignment in (DEFAULT, best):
            key = self.plan(TrialRequest(assignment)).plan.keys[self.scenario]
            sides.append([row for row in self._before() if row.key == key])
        return confirming_starts(sides[0], sides[1], count, self.tuned.config.repeats)

    def measure(
        self, requests: Sequence[TrialRequest], is_beaten: IsBeaten
    ) -> Generator[Trial, None, None]:
        """Loads as many engines together as fit, and measures one at a time."""
        missing = []
        for request in requests:
            trial = self.plan(request)
            if trial.plan.repeats[request.number][self.scenario]:
                with self._guarded(trial):
                    self._check(trial)
                    missing.append(trial)
            if trial not in missing:
                yield self._result(trial)
        size = self.tuned.config.side_by_side
        for group in groups(missing, size, lambda trial: trial.plan.held_gib, room_gib()):
            yield from self._measure_group(group, is_beaten)

    def _check(self, trial: PlannedTrial) -> None:
        """Checks the checkpoint again where settings change what is needed of it."""
        if self.space.changes_answers(trial.request.assignment):
            checked_folder(self.tuned.inspected.target, self.tuned.original, trial.config)

    def _measure_group(
        self, trials: list[PlannedTrial], is_beaten: IsBeaten
    ) -> Generator[Trial, None, None]:
        turns = [trial.turn for trial in trials]
        begin = time.monotonic()
        with Group(self.tuned.config, turns, self.recorder.path) as group:
            group.limit_s = self._limit_s()
            for place, trial in enumerate(trials):
                self.display.begin(trial.request)
                with self._guarded(trial):
                    group.load(place, self.display.loading)
            group.wait_until_loaded()
            for place, trial in enumerate(trials):
                if place in group.workers:
                    self.display.begin(trial.request)
                    with self._guarded(trial), closing(group.measure(place)) as sent:
                        raced = self._raced(trial, sent, is_beaten)
                        self.events.record_events(turns[place], raced)
                yield self._result(trial)
        if not any(trial.request in self.failures for trial in trials):
            self.longest_s = max(self.longest_s or 0.0, time.monotonic() - begin)

    def _limit_s(self) -> float:
        if self.longest_s is None:
            return SURELY_HUNG_S
        return max(LEAST_HUNG_S, HUNG * self.longest_s)

    @contextmanager
    def _guarded(self, trial: PlannedTrial) -> Iterator[None]:
        """Records the failure of a trial with its settings, so that others go on and a later
        command knows how often it failed."""
        self.recorder.use(trial.config, trial.plan.environment)
        before = len(self.recorder.failures)
        name, key = self.tuned.name, trial.plan.keys[self.scenario]
        try:
            yield
        except Exception as error:
            self.recorder.fail(name, self.scenario, key, error)
        for failure in self.recorder.failures[before:]:
            reason = str(failure).removeprefix(f"{name}: ").removeprefix(f"{self.scenario}: ")
            self.failures[trial.request] = reason

    def _raced(
        self, trial: PlannedTrial, events: Iterator[Event], is_beaten: IsBeaten
    ) -> Iterator[Event]:
        """The events until the trial is beaten. The row of an event is written when the next one
        is asked for."""
        for event in events:
            yield event
            if isinstance(event, RunMeasured):
                result = self._result(trial)
                is_whole = result.runs >= self.tuned.config.repeats
                if not is_whole and result.start is not None and is_beaten(result.start):
                    self.beaten.add(trial.request)
                    return

    def _result(self, trial: PlannedTrial) -> Trial:
        key = trial.plan.keys[self.scenario]
        new = [row for row in self.recorder.rows if row.key == key]
        rows = {id(row): row for row in [*trial.plan.recorded, *new]}
        result = self._trial(trial.request, list(rows.values()))
        failure = self.failures.get(trial.request, "")
        if result.runs < LEAST_RUNS and not result.failure:
            result = replace(result, failure=failure or "it has fewer than two valid runs")
        is_beaten = trial.request in self.beaten
        if failure and not is_beaten and self._is_incomplete(result):
            result = replace(result, failure=failure)
        return replace(result, is_beaten=is_beaten, saved_s=self._saved_s(trial, new))

    def _is_incomplete(self, trial: Trial) -> bool:
        """Whether two runs or more are valid and others are missing. If its engine failed then, the
        trial has failed: settings with which an engine dies are not served."""
        return not trial.failure and trial.runs < self.tuned.config.repeats

    def _trial(self, request: TrialRequest, rows: Sequence[Row]) -> Trial:
        valid = [row for row in _runs_of(request, rows) if not row.invalid]
        misses = missed_targets(valid, self.tuned.config.targets)
        return replace(trial_of(request, rows), misses=misses)

    def _saved_s(self, trial: PlannedTrial, new: list[Row]) -> float:
        """Seconds of the runs that were not measured here: those after a stop, or before a
        continuation."""
        runs = _runs_of(trial.request, new)
        times = [row.values.latency_s for row in runs if row.values.latency_s is not None]
        missing = self.tuned.config.repeats - len(runs)
        return missing * statistics.fmean(times) if times else 0.0

    def _took_s(self, rows: Sequence[Row]) -> float | None:
        """About how many seconds a start with all runs takes; None where no row says it, as of
        engines that were loaded together."""
        runs = [row for row in rows if isinstance(row, SpeedRow)]
        starts = [
            row.startup.start_s + (row.startup.import_s or 0.0)
            for row in runs
            if row.startup.start_s is not None
        ]
        times = [row.values.latency_s for row in runs if row.values.latency_s is not None]
        if not starts or not times:
            return None
        return statistics.median(starts) + self.tuned.config.repeats * statistics.median(times)

    def judge(self, assignment: Assignment) -> Judgement:
        """Compares the answers with those of the default settings, on the evaluation text."""
        self.display.judge(assignment)
        engines = [self.engine(one) for one in (DEFAULT, assignment)]
        return judge_answers(self.tuned, engines, self.accuracy, self.recorder, self.display)

    def check_length(self) -> None:
        """Raises where the scenario does not fit into the model's context."""
        skipped = self.plan(TrialRequest(DEFAULT, SEARCH)).plan.skipped
        if self.scenario in skipped:
            raise bad_input(f"scenario={self.scenario}: {skipped[self.scenario]}")


def trial_of(request: TrialRequest, rows: Sequence[Row]) -> Trial:
    """The trial of one start, by the time that ranks setups in the report. `rows` are those of its
    key. Without two valid runs it has failed where rows say why."""
    runs = _runs_of(request, rows)
    valid = [row for row in runs if not row.invalid]
    if len(valid) < LEAST_RUNS:
        reason = _reason(rows, runs)
        return Trial(request.assignment, runs=len(valid), failure=reason, is_final=_is_final(rows))
    (cell,) = cells(valid)
    sample = cell.sample(cell.ranked_by)
    if sample is None:
        return Trial(request.assignment, failure=f"{cell.ranked_by} was not measured")
    # An interrupted trial was continued in another start; for the search it is still one.
    logs = tuple(log for start in sample.starts for log in start.logs)
    return Trial(request.assignment, Start(logs), runs=len(valid))


def _runs_of(request: TrialRequest, rows: Sequence[Row]) -> list[SpeedRow]:
    """The runs of one start."""
    return [row for row in rows if isinstance(row, SpeedRow) and row.start == request.number]


def _reason(rows: Sequence[Row], runs: Sequence[SpeedRow]) -> str:
    """The last failure, or why its runs are invalid; empty where no row says it."""
    failures = [row.reason for row in rows if isinstance(row, FailedRow)]
    invalid = [reason for row in runs for reason in row.invalid]
    return next(iter([*failures[-1:], *invalid]), "")


def _is_final(rows: Sequence[Row]) -> bool:
    """Whether these settings fail whenever they are tried, and not for want of memory or a disk
    only."""
    failures = [row for row in rows if isinstance(row, FailedRow)]
    commands = {row.environment.search or row.time for row in failures}
    return len(commands) >= TRIES or any(map(_is_refused, failures))


def _is_refused(row: FailedRow) -> bool:
    """Whether the settings were refused. vLLM refuses its own options by ending with an error of
    pydantic, which has the exit code of a dead engine."""
    return row.values.exit_code == BAD_INPUT or VALIDATION in row.reason
