"""Runs a task in a process of its own and records its end. Every launcher calls this on the machine
that runs the job."""

import os
import platform
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

from conf.errors import ENVIRONMENT_FAILURE, QuantlineError
from conf.launch.records import read_record, write_record
from conf.launch.task import CPUS_VARIABLE, JOB, JOB_VARIABLE, JobEnded, Record, Task
from conf.process.running import Running
from conf.process.visible_gpus import VISIBLE
from conf.signals import BY_SIGNAL

Process = Running[JobEnded]
SENT = (signal.SIGTERM, signal.SIGHUP)
# As a process ends, and as our commands do.
FROM_OUTSIDE = tuple(code for number in SENT for code in (-number, BY_SIGNAL + number))


class EndedFromOutsideError(Exception):
    """The job got SIGTERM or SIGHUP. Slurm sends SIGTERM to all processes of a job that it preempts
    or cancels."""


def job_variables(
    task: Task, base: Mapping[str, str], gpus: str | None, cpus: int | None
) -> dict[str, str]:
    """The environment of a job's process. `gpus` is the list for CUDA_VISIBLE_DEVICES, or None to
    keep what the cluster set. `cpus` is set for a job without a GPU that is not alone."""
    variables = dict(base) | {JOB_VARIABLE: task.name}
    if gpus is not None:
        variables[VISIBLE] = gpus
    variables.pop(CPUS_VARIABLE, None)
    if cpus is not None:
        variables[CPUS_VARIABLE] = str(cpus)
    return variables


def run_task(
    task: Task,
    variables: Mapping[str, str],
    started: Callable[[Process], None] = lambda process: None,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> Record:
    """Runs the task to its end. A job that is cancelled or killed leaves the record of a running
    one, and is run again."""
    Path(task.sweep_folder).mkdir(parents=True, exist_ok=True)
    before = read_record(task.record_file)
    attempt = before.attempt + 1 if before and before.state == "running" else 1
    host = platform.node()
    record = Record("running", task.overrides, host, attempt)
    write_record(task.record_file, record)
    try:
        ended = _run(task, variables, started)
        record = Record(
            "done", task.overrides, host, attempt, value=ended.value, outputs=ended.outputs
        )
    except EndedFromOutsideError:
        return record
    except QuantlineError as error:
        if is_cancelled():
            return record
        record = Record("failed", task.overrides, host, attempt, error.exit_code, str(error))
    except OSError as error:  # no process could be started
        record = Record("failed", task.overrides, host, attempt, ENVIRONMENT_FAILURE, str(error))
    write_record(task.record_file, record)
    return record


def _run(task: Task, variables: Mapping[str, str], started: Callable[[Process], None]) -> JobEnded:
    command = [sys.executable, "-m", JOB.module]
    process = Running(command, JOB.events, JOB.name, task.log_file, variables, task.working_folder)
    with closing(process):
        started(process)
        process.send(task)
        process.begin()
        try:
            events = list(process.events())
        except QuantlineError as error:
            if process.process.wait() in FROM_OUTSIDE:
                raise EndedFromOutsideError from error
            raise
    if not events:
        raise process.crash()
    return events[-1]


def inherited() -> dict[str, str]:
    """The environment of this process, for a job on the same machine."""
    return dict(os.environ)
