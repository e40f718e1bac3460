"""`python -m conf.launch.work`: the inside of a job's process."""

import importlib
import math
import sys
from typing import SupportsFloat

from conf.compose import compose
from conf.entry import set_child_import_path
from conf.launch.task import JOB, JobEnded, Task
from conf.process.inside import Send, run_program


def work(task: Task, send: Send[JobEnded]) -> None:
    """Runs the command on the task's options, with its results in the job's own shard."""
    set_child_import_path()
    module = importlib.import_module(task.module)
    command = module.COMMAND
    # Rows hold the command that measured them: the one that a user would type.
    sys.orig_argv = [sys.executable, "-m", command.module or command.name, *task.overrides]
    config = command.sweep.in_job(compose(command, task.overrides), task.shard)
    result = module.main(config)
    value = float(result) if isinstance(result, SupportsFloat) else math.nan
    send(JobEnded(value if math.isfinite(value) else None, command.sweep.outputs(config)))


if __name__ == "__main__":
    run_program(JOB, work, "Runs one job of a sweep. Started by a launcher.")
