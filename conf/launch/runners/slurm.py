"""launcher=slurm: jobs of a Slurm cluster, submitted through submitit.

submitit writes the batch script and the job array, catches the signal that Slurm sends before a
time limit or a preemption, and queues the job again. The batch script becomes submitit's process:
a step of its own (srun) and a shell that waits would only cost time. States come from squeue:
submitit asks sacct, which needs a cluster with accounting.
"""

import math
import shlex
import sys
from pathlib import Path
from typing import Any

from conf import ROOT
from conf.errors import QuantlineError, bad_input, unknown
from conf.launch.options import LauncherConfig
from conf.launch.records import has_recorded_end
from conf.launch.runners import JobState, Resources, Runner, chosen_gpus
from conf.launch.runners import slurm_commands as slurm
from conf.launch.runners.slurm_commands import NodeKind
from conf.launch.slurm_task import SlurmTask
from conf.launch.task import Task
from conf.terminal import say

JOB_NAME = "quantline"
FOLDER = "slurm"
"""Where submitit keeps its scripts, pickles and logs, in the sweep's folder."""
ON_NODE = "conf.launch.slurm_node"
"""The module that starts submitit in a job."""
MINUTES = 240
SECONDS_BEFORE_LIMIT = 60
"""How long before its time limit a job is told to queue itself again."""
WAITING = {"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
ENDED = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
    *("PREEMPTED", "TIMEOUT"),
}
LOOKS_AT_AN_ENDED_JOB = 2
"""A job that is being queued again may look ended for a moment. One look is enough where the job
has recorded its end."""


class SlurmRunner(Runner):
    """Submits tasks as job arrays."""

    def __init__(self, options: LauncherConfig, resources: Resources) -> None:
        slurm.check_commands()
        self.options = options
        nodes = _nodes_of_partition(slurm.node_kinds(), options)
        self.gpus_per_job = chosen_gpus(
            options, resources, _most_gpus(nodes, options.gpu_type), _where(nodes, options)
        )
        check_against(nodes, options)
        most_minutes = max((node.most_minutes for node in nodes), default=MINUTES)
        self.minutes = options.minutes or int(min(MINUTES, most_minutes))
        slurm.test_submission(self._flags())
        self.identifiers: dict[str, str] = {}
        self.folders: dict[str, Path] = {}
        self.looks: dict[str, int] = {}
        self.record_files: dict[str, Path] = {}
        """The records of the jobs that had recorded no end before they were submitted."""

    def _parameters(self) -> dict[str, Any]:
        """submitit's parameters."""
        options = self.options
        chosen = {
            "job_name": JOB_NAME,
            "time": self.minutes,
            "partition": options.partition,
            "account": options.account,
            "qos": options.qos,
            "cpus_per_task": options.cpus_per_job,
            "mem": self._memory(),
            "gres": self._gres(),
            "array_parallelism": options.parallel,
            "stderr_to_stdout": True,
            "use_srun": False,
            "additional_parameters": {"requeue": True, "signal": _signal()},
            "setup": [
                f"export PYTHONPATH={shlex.quote(str(ROOT))}:$PYTHONPATH PYTHONSAFEPATH=1",
                *options.setup,
            ],
        }
        return {name: value for name, value in chosen.items() if value is not None}

    def _gres(self) -> str | None:
        kind = f":{self.options.gpu_type}" if self.options.gpu_type else ""
        return f"gpu{kind}:{self.gpus_per_job}" if self.gpus_per_job else None

    def _memory(self) -> str | None:
        memory = self.options.memory_gib
        return None if memory is None else f"{math.ceil(memory * 1024)}M"

    def _flags(self) -> list[str]:
        """The same request as options of sbatch."""
        options = self.options
        chosen = {
            "time": self.minutes,
            "partition": options.partition,
            "account": options.account,
            "qos": options.qos,
            "cpus-per-task": options.cpus_per_job,
            "mem": self._memory(),
            "gres": self._gres(),
        }
        return [f"--{name}={value}" for name, value in chosen.items() if value is not None]

    def submit(self, tasks: list[Task]) -> None:
        """Submits the tasks that are not in the queue already: an earlier call of the command may
        have ended without cancelling them."""
        self.folders |= {task.name: Path(task.sweep_folder) / FOLDER for task in tasks}
        self.record_files |= {
            task.name: task.record_file for task in tasks if not has_recorded_end(task.record_file)
        }
        has_earlier = any(identifier_file(task).is_file() for task in tasks)
        queue = slurm.jobs_of_user() if has_earlier else {}
        new = [task for task in tasks if not self._is_queued(task, queue)]
        by_folder: dict[str, list[Task]] = {}
        for task in new:
            by_folder.setdefault(task.sweep_folder, []).append(task)
        for folder, together in by_folder.items():
            self._submit_array(Path(folder), together)

    def _is_queued(self, task: Task, queue: dict[str, slurm.QueuedJob]) -> bool:
        file = identifier_file(task)
        identifier = file.read_text().strip() if file.is_file() else ""
        job = queue.get(identifier)
        if job is None or job.state in ENDED:
            return False
        say(f"{task.name}: is in the queue already, as job {identifier}")
        self.identifiers[task.name] = identifier
        return True

    def _submit_array(self, folder: Path, tasks: list[Task]) -> None:
        from submitit import SlurmExecutor

        cpus = None if self.gpus_per_job else self.options.cpus_per_job or 1
        # `exec` takes the place of the batch script's shell, so that signals reach submitit.
        python = f"exec {shlex.quote(sys.executable)} -u -m {ON_NODE}"
        executor = SlurmExecutor(folder / FOLDER, self.options.restarts, python=python)
        executor.update_parameters(**self._parameters())
        with executor.batch():
            jobs = [executor.submit(SlurmTask(task, self.gpus_per_job, cpus)) for task in tasks]
        for task, job in zip(tasks, jobs, strict=True):
            self.identifiers[task.name] = job.job_id
            identifier_file(task).write_text(f"{job.job_id}\n")

    def states(self) -> dict[str, JobState]:
        jobs = slurm.jobs_of_user()
        return {name: self._state(name, jobs) for name in self.identifiers}

    def _state(self, name: str, jobs: dict[str, slurm.QueuedJob]) -> JobState:
        identifier = self.identifiers[name]
        job = jobs.get(identifier)
        if job is not None and job.state not in ENDED:
            self.looks[name] = 0
            return JobState("queued" if job.state in WAITING else "running")
        self.looks[name] = self.looks.get(name, 0) + 1
        file = self.record_files.get(name)
        is_certain = file is not None and has_recorded_end(file)
        if not is_certain and self.looks[name] < LOOKS_AT_AN_ENDED_JOB:
            return JobState("running")
        state = job.state if job else "no longer in the queue"
        log = self.folders[name] / f"{identifier}_0_log.out"
        return JobState("ended", f"Slurm's job {identifier} is {state}, its output is in {log}")

    def cancel(self) -> None:
        try:
            jobs = slurm.jobs_of_user()
        except QuantlineError:  # cancel all the more
            jobs = {}
        ended = {name for name, job in jobs.items() if job.state in ENDED}
        slurm.cancel([number for number in self.identifiers.values() if number not in ended])


def identifier_file(task: Task) -> Path:
    """Where the number of the task's Slurm job is kept."""
    return task.record_file.with_suffix(".slurm")


def _signal() -> str:
    """The signal before a time limit. `B:` sends it to the batch script: there is no other step."""
    from submitit import JobEnvironment

    return f"B:{JobEnvironment.USR_SIG}@{SECONDS_BEFORE_LIMIT}"


def _nodes_of_partition(kinds: list[NodeKind], options: LauncherConfig) -> list[NodeKind]:
    names = {kind.partition for kind in kinds}
    if options.partition is None:
        return [kind for kind in kinds if kind.is_default] or kinds
    wanted = options.partition.split(",")
    for name in wanted:
        if name not in names:
            raise unknown(f"launcher.partition={options.partition}", name, names)
    return [kind for kind in kinds if kind.partition in wanted]


def _most_gpus(nodes: list[NodeKind], kind: str | None) -> int:
    kinds = {name for node in nodes for name in node.gpus}
    if kind is not None and kind not in kinds:
        raise unknown(f"launcher.gpu_type={kind}", kind, {name for name in kinds if name})
    return max(
        (sum(n for name, n in node.gpus.items() if kind in (None, name)) for node in nodes),
        default=0,
    )


def _where(nodes: list[NodeKind], options: LauncherConfig) -> str:
    names = options.partition or ",".join(sorted({node.partition for node in nodes}))
    return f"the largest node of partition {names}"


def check_against(nodes: list[NodeKind], options: LauncherConfig) -> None:
    """Raises where no node of the partition has what one job asks for."""
    where = _where(nodes, options)
    most_cpus = max((node.cpus for node in nodes), default=0)
    if options.cpus_per_job and options.cpus_per_job > most_cpus:
        raise bad_input(f"launcher.cpus_per_job={options.cpus_per_job}: {where} has {most_cpus}")
    most_gib = max((node.memory_mib for node in nodes), default=0) / 1024
    if options.memory_gib and options.memory_gib > most_gib:
        raise bad_input(f"launcher.memory_gib={options.memory_gib:g}: {where} has {most_gib:.1f}")
    most_minutes = max((node.most_minutes for node in nodes), default=0)
    if options.minutes and options.minutes > most_minutes:
        raise bad_input(
            f"launcher.minutes={options.minutes}: the partition's limit is {most_minutes:g}"
        )


RUNNER = SlurmRunner
