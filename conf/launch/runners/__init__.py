"""The launchers: each runs tasks somewhere, and says what became of them."""

import importlib
import importlib.util
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from conf.errors import bad_input, environment_failure
from conf.launch.options import RAY, SLURM, LauncherConfig
from conf.launch.task import Task

MODULES = {
    "local": "conf.launch.runners.local",
    "slurm": "conf.launch.runners.slurm",
    "ray": "conf.launch.runners.ray_tasks",
}
# The package that a launcher needs, from the extra `cluster`.
NEEDS = {SLURM: "submitit", RAY: "ray"}


@dataclass(frozen=True)
class JobState:
    """The state of a submitted job, as its launcher knows it."""

    kind: Literal["queued", "running", "ended"]
    reason: str = ""
    """How it ended, where the launcher knows more than the job's own record."""


@dataclass(frozen=True)
class Resources:
    """What each job of the sweep needs."""

    gpus_needed: int
    """GPUs that its engine needs, where there are any."""


class Runner(ABC):
    """Runs tasks. The constructor checks the options against what the cluster has, before anything
    is submitted."""

    @abstractmethod
    def submit(self, tasks: list[Task]) -> None:
        """Submits tasks. May be called again while earlier ones run."""

    @abstractmethod
    def states(self) -> dict[str, JobState]:
        """The state of every submitted task, by name."""

    @abstractmethod
    def cancel(self) -> None:
        """Ends all jobs that have not ended."""

    def close(self) -> None:  # noqa: B027 (most have nothing to close)
        """Frees what the runner holds."""


def start_runner(options: LauncherConfig, resources: Resources) -> Runner:
    """The runner of the chosen launcher, its options checked."""
    package = NEEDS.get(options.kind)
    if package is not None and importlib.util.find_spec(package) is None:
        raise environment_failure(
            f"launcher={options.kind} needs the package {package}: install it with "
            "`make setup-cluster`, or pip install 'quantline[cluster]'"
        )
    runner: Runner = importlib.import_module(MODULES[options.kind]).RUNNER(options, resources)
    return runner


def chosen_gpus(options: LauncherConfig, resources: Resources, most: int, where: str) -> int:
    """The GPUs of one job. `most` is what the largest machine has."""
    chosen = options.gpus_per_job
    if chosen is None:
        chosen = resources.gpus_needed if most else 0
    elif 0 < chosen < resources.gpus_needed:
        raise bad_input(
            f"launcher.gpus_per_job={chosen}: the engine of a job needs {resources.gpus_needed}"
        )
    if chosen > most:
        given = "launcher.gpus_per_job=" if options.gpus_per_job else "a job needs GPUs: "
        raise bad_input(f"{given}{chosen}: {where} has {most}")
    return chosen
