"""Turns the jobs of a sweep into tasks: splits each into parts, names them, and orders them."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from conf.launch.hooks import Config, SweepHooks
from conf.launch.task import Task
from conf.unused.rule import given_key

# What does not change the result of a job: a sweep begun on one machine goes on on a cluster.
NOT_PART_OF_A_JOB = ("launcher", "results", "force", "replace")
LONGEST_LABEL = 60
Compose = Callable[[list[str]], Config]


@dataclass(frozen=True)
class PlannedTask:
    """A task with its options."""

    task: Task
    config: Config
    jobs: set[int] = field(default_factory=set)
    """The numbers of the sweep's jobs that it belongs to."""
    after: str | None = None
    """The name of the task that must end first; None if there is none."""


@dataclass(frozen=True)
class Planner:
    """Makes tasks for the jobs of one command."""

    module: str
    hooks: SweepHooks
    compose: Compose

    def plan(self, jobs: Sequence[Sequence[str]]) -> list[PlannedTask]:
        """The tasks, those that others wait for first. Equal tasks are one."""
        configs = [self.compose(list(overrides)) for overrides in jobs]
        parts = [self.hooks.parts(config) for config in configs]
        shared = [
            None if part.shared_first is None else self._task([*jobs[number]], part.shared_first)
            for number, part in enumerate(parts)
        ]
        waiting: Counter[str] = Counter()
        for first, part in zip(shared, parts, strict=True):
            if first is not None:
                waiting[first.task.name] += len(part.separate)
        tasks: dict[str, PlannedTask] = {}

        def add(planned: PlannedTask, number: int) -> None:
            tasks.setdefault(planned.task.name, planned).jobs.add(number)

        for number, first in enumerate(shared):
            if first is not None and waiting[first.task.name] != 1:
                add(first, number)
        for number, (first, part) in enumerate(zip(shared, parts, strict=True)):
            after = first.task.name if first and first.task.name in tasks else None
            for more in part.separate:
                # A single part does the shared work itself: nothing else waits for it.
                planned = self._task([*jobs[number]], more, after)
                add(planned, number)
        return list(tasks.values())

    def _task(self, overrides: list[str], more: list[str], after: str | None = None) -> PlannedTask:
        keys = {given_key(text) for text in more}
        chosen = [text for text in overrides if given_key(text) not in keys] + more
        config = self.compose(chosen)
        folder = self.hooks.folder(config).absolute()
        label = re.sub(r"[^\w.-]+", "-", self.hooks.label(config))[:LONGEST_LABEL].strip("-.")
        task = Task(
            name=f"{label}-{_digest(self.module, chosen)}",
            module=self.module,
            overrides=[text for text in chosen if given_key(text).split(".")[0] != "launcher"],
            sweep_folder=str(folder),
            working_folder=str(Path.cwd()),
        )
        return PlannedTask(task, config, after=after)


def _digest(module: str, overrides: list[str]) -> str:
    kept = sorted(
        text for text in overrides if given_key(text).split(".")[0] not in NOT_PART_OF_A_JOB
    )
    return hashlib.sha256(json.dumps([module, kept]).encode()).hexdigest()[:8]
