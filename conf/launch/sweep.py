"""A sweep on a launcher: plan the tasks, check them, run what is missing, gather, list failures."""

import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from conf.errors import QuantlineError
from conf.job import JobFailure, Outcome
from conf.launch.hooks import SweepHooks
from conf.launch.options import LauncherConfig
from conf.launch.planning import PlannedTask, Planner
from conf.launch.records import read_record
from conf.launch.runners import Resources, start_runner
from conf.launch.task import Record
from conf.launch.watching import Watch
from conf.signals import (
    INTERRUPTION,
    Terminated,
    how_to_continue,
    interrupts_ignored,
    raised_signals,
)
from conf.terminal import say


@dataclass(frozen=True)
class Sweep:
    """The jobs of one call of a command with `-m`."""

    planner: Planner

    @property
    def hooks(self) -> SweepHooks:
        return self.planner.hooks

    def run(self, jobs: Sequence[Sequence[str]]) -> list[Outcome]:
        """Runs all jobs and returns their outcomes, in order."""
        tasks = self.planner.plan(jobs)
        configs = [planned.config for planned in tasks]
        options: LauncherConfig = configs[0].launcher
        self.hooks.check(configs)
        with self.hooks.holding(configs), raised_signals(), self._kept_when_ended(tasks):
            self.hooks.gather(configs)
            records = {p.task.name: r for p in tasks if (r := self._finished(p)) is not None}
            missing = [planned for planned in tasks if planned.task.name not in records]
            if records:
                say(f"{len(tasks)} jobs, of which {len(records)} are done already")
            self.hooks.check_missing([planned.config for planned in missing])
            if missing:
                try:
                    records |= self._run(missing, options)
                finally:  # also after Ctrl-C: what was measured is kept
                    with interrupts_ignored():
                        self.hooks.gather(configs)
            failures = self.hooks.finish(configs)
        outcomes = [_outcome(number, tasks, records) for number in range(len(jobs))]
        return _with_failures(outcomes, [JobFailure.of(error) for error in failures])

    @contextmanager
    def _kept_when_ended(self, tasks: list[PlannedTask]) -> Iterator[None]:
        """Adds to Ctrl-C and signals how many jobs are done and that the same command continues."""
        try:
            yield
        except Terminated as ended:
            raise Terminated(ended.signal, self._what_is_kept(tasks)) from ended
        except KeyboardInterrupt as interrupted:
            kept = self._what_is_kept(tasks)
            raise KeyboardInterrupt(f"{INTERRUPTION}; {kept}") from interrupted

    def _what_is_kept(self, tasks: list[PlannedTask]) -> str:
        configs = [planned.config for planned in tasks]
        anew = self.hooks.begins_anew_with(configs[0])
        if anew:
            return how_to_continue(self.hooks.kept(configs), anew)
        done = sum(self._finished(planned) is not None for planned in tasks)
        count = f"{done} of {len(tasks)} jobs are done"
        return "; ".join([count, how_to_continue(self.hooks.kept(configs))])

    def _finished(self, planned: PlannedTask) -> Record | None:
        """The record of a task that an earlier call has done."""
        record = read_record(planned.task.record_file)
        if record is None or record.state != "done":
            return None
        return record if self.hooks.is_done(planned.config, record) else None

    def _run(self, tasks: list[PlannedTask], options: LauncherConfig) -> dict[str, Record]:
        configs = [planned.config for planned in tasks]
        gpus = max(self.hooks.gpus(config) for config in configs)
        runner = start_runner(options, Resources(gpus))
        say(f"launcher={options.kind}: {len(tasks)} jobs; logs in {tasks[0].task.sweep_folder}")
        with ExitStack() as stack:
            stack.callback(runner.close)
            watch = Watch(runner, options.poll_s, lambda: self.hooks.gather(configs))
            try:
                return watch.run(tasks)
            except BaseException as error:
                _say_cancelling(error)
                with interrupts_ignored(), suppress(QuantlineError):
                    runner.cancel()
                raise


def _say_cancelling(error: BaseException) -> None:
    is_ended = isinstance(error, KeyboardInterrupt | Terminated)
    if sys.stderr.isatty():
        say("")  # ends the line of the counts
    say("cancelling the jobs" if is_ended else f"cancelling the jobs ({type(error).__name__})")


def _outcome(number: int, tasks: list[PlannedTask], records: dict[str, Record]) -> Outcome:
    """The outcome of one job of the sweep: the failures of its tasks, or its value."""
    failures, values = [], []
    for planned in tasks:
        record = records[planned.task.name]
        # A shared task is reported once, with the first job that needs it.
        if record.state == "failed" and number == min(planned.jobs):
            failures.append(_failure(planned, record))
        if number in planned.jobs and record.value is not None and record.value > 0:
            values.append(record.value)
    value = statistics.geometric_mean(values) if values else math.nan
    return _with_failures([Outcome(None if math.isnan(value) else value)], failures)[0]


def _with_failures(outcomes: list[Outcome], failures: list[JobFailure]) -> list[Outcome]:
    """The outcomes, with more failures in the last of them."""
    if not failures:
        return outcomes
    last = outcomes[-1]
    first, *more = [*last.failures, *failures]
    return [*outcomes[:-1], Outcome(last.value, first, tuple(more))]


def _failure(planned: PlannedTask, record: Record) -> JobFailure:
    log = planned.task.log_file
    message = f"{record.message} (log: {log})" if log.exists() else record.message
    return JobFailure(message, record.exit_code, "", False, planned.task.name)
