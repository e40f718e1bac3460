"""The function that submitit pickles and calls on the node.

It has a module of its own, so that the node imports no more than it needs before a job begins.
"""

import os
from dataclasses import dataclass
from typing import Any

from conf.launch.run_task import job_variables, run_task
from conf.launch.task import Task


@dataclass(frozen=True)
class SlurmTask:
    """Runs a task in the job that Slurm started."""

    task: Task
    gpus_per_job: int
    cpus: int | None

    def __call__(self) -> None:
        gpus = None if self.gpus_per_job else ""
        run_task(self.task, job_variables(self.task, os.environ, gpus, self.cpus))

    def checkpoint(self) -> Any:
        """Called before the job is queued again: its rows are on disk, so it begins the same way
        and finds them."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)
