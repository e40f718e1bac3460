"""Follows the jobs of a sweep to their end, and shows how many wait, run, are done or failed."""

import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from conf.errors import ENVIRONMENT_FAILURE, QuantlineError
from conf.launch.planning import PlannedTask
from conf.launch.records import read_record
from conf.launch.runners import JobState, Runner
from conf.launch.task import DONE, FAILED, QUEUED, RUNNING, Record
from conf.terminal import say

SECONDS_FOR_A_RECORD = 10.0
"""How long a file that another machine wrote may take to be seen here."""


@dataclass
class Watch:
    """The jobs that have not ended, and the records of those that have."""

    runner: Runner
    poll_s: float
    gather: Callable[[], None]
    """Brings together what the jobs wrote, before others that need it are submitted."""
    records: dict[str, Record] = field(default_factory=dict)
    line: str = ""

    def run(self, tasks: list[PlannedTask]) -> dict[str, Record]:
        """Runs the tasks, each after the one that it waits for. Returns their records."""
        open_tasks = {planned.task.name: planned for planned in tasks}
        held = {name: p for name, p in open_tasks.items() if p.after in open_tasks}
        self.runner.submit([p.task for name, p in open_tasks.items() if name not in held])
        submitted = open_tasks.keys() - held.keys()
        while open_tasks:
            states = self._states()
            for name in [n for n in submitted if states[n].kind == "ended" and n in open_tasks]:
                self.records[name] = _final_record(open_tasks.pop(name), states[name].reason)
            self._show(open_tasks, states)
            ready = [p for p in held.values() if p.after not in open_tasks]
            if ready:
                self.gather()
                self.runner.submit([planned.task for planned in ready])
                names = {planned.task.name for planned in ready}
                submitted |= names
                held = {name: p for name, p in held.items() if name not in names}
            elif open_tasks:
                time.sleep(self.poll_s)
        if sys.stderr.isatty():
            print(file=sys.stderr)
        return self.records

    def _states(self) -> dict[str, JobState]:
        """The states; waits where the cluster does not answer for a while."""
        while True:
            try:
                return self.runner.states()
            except QuantlineError as error:
                say(f"{error}; asking again")
                time.sleep(max(self.poll_s, 1.0))

    def _show(self, open_tasks: dict[str, PlannedTask], states: dict[str, JobState]) -> None:
        """One line: redrawn in a terminal, elsewhere printed where it has changed."""
        waiting = JobState("queued")
        kinds: list[str] = [states.get(name, waiting).kind for name in open_tasks]
        counts = Counter([*kinds, *(record.state for record in self.records.values())])
        line = ", ".join(f"{counts[kind]} {kind}" for kind in (QUEUED, RUNNING, DONE, FAILED))
        if line == self.line:
            return
        self.line = line
        if sys.stderr.isatty():
            print(f"\r\033[Kjobs: {line}", end="", file=sys.stderr, flush=True)
        else:
            say(f"jobs: {line}")


def _final_record(planned: PlannedTask, reason: str) -> Record:
    """The record of a job that its launcher calls ended. A job that was killed has written none."""
    task = planned.task
    deadline = time.monotonic() + SECONDS_FOR_A_RECORD
    while True:
        record = read_record(task.record_file)
        if record is not None and record.state != "running":
            return record
        if time.monotonic() > deadline:
            break
        time.sleep(0.2)
    if record is None:
        message = (
            f"it left no record in {task.sweep_folder} ({reason or 'no reason is known'}); do all "
            "machines see this folder?"
        )
        return Record("failed", task.overrides, "", 0, ENVIRONMENT_FAILURE, message)
    message = f"it was ended from outside ({reason or 'no reason is known'})"
    return Record(
        "failed", task.overrides, record.host, record.attempt, ENVIRONMENT_FAILURE, message
    )
