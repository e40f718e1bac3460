"""Slurm's own commands: what the cluster has, the state of jobs, cancelling."""

import re
import shutil
import subprocess
from dataclasses import dataclass

from conf.errors import environment_failure, one_line

COMMANDS = ("sbatch", "squeue", "scancel", "sinfo", "scontrol", "srun")
GPUS = re.compile(r"\bgpu(?::(?P<kind>[^:(,]+))?:(?P<count>\d+)")
LIMIT = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")
SECONDS_TO_ANSWER = 60


@dataclass(frozen=True)
class NodeKind:
    """Nodes of one kind in a partition."""

    partition: str
    is_default: bool
    cpus: int
    memory_mib: int
    gpus: dict[str, int]
    """Counts by type; the type is empty where the cluster names none."""
    most_minutes: float
    """Time limit of the partition."""


@dataclass(frozen=True)
class QueuedJob:
    """A job as squeue lists it."""

    identifier: str
    state: str
    reason: str


def check_commands() -> None:
    missing = [name for name in COMMANDS if shutil.which(name) is None]
    if missing:
        raise environment_failure(
            f"launcher=slurm: there is no command {missing[0]} here; call it where Slurm's "
            "commands are installed, as on a login node"
        )


def node_kinds() -> list[NodeKind]:
    """The nodes of the cluster, by partition."""
    lines = _run("sinfo", "--noheader", "--format=%P|%c|%m|%G|%l").splitlines()
    return [_node_kind(line) for line in lines if line.strip()]


def _node_kind(line: str) -> NodeKind:
    partition, cpus, memory, gres, limit = line.strip().split("|")
    gpus: dict[str, int] = {}
    for match in GPUS.finditer(gres):
        kind = match["kind"] or ""
        gpus[kind] = gpus.get(kind, 0) + int(match["count"])
    return NodeKind(
        partition=partition.rstrip("*"),
        is_default=partition.endswith("*"),
        cpus=int(cpus.rstrip("+")),
        memory_mib=int(memory.rstrip("+")),
        gpus=gpus,
        most_minutes=minutes_of(limit),
    )


def minutes_of(limit: str) -> float:
    """A time limit of Slurm, as 1-00:00:00 or 30:00; infinite where there is none."""
    match = LIMIT.fullmatch(limit)
    if match is None:
        return float("inf")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return (days * 24 + hours) * 60 + minutes + seconds / 60


def jobs_of_user() -> dict[str, QueuedJob]:
    """The jobs that Slurm knows of this user, those that ended a short while ago included."""
    lines = _run("squeue", "--me", "--noheader", "--array", "--states=all", "--format=%i|%T|%r")
    jobs = [QueuedJob(*line.split("|", 2)) for line in lines.splitlines() if line.count("|") >= 2]
    return {job.identifier: job for job in jobs}


def test_submission(flags: list[str]) -> None:
    """Lets Slurm judge the options of a job without submitting it."""
    _run("sbatch", "--test-only", *flags, "--wrap=true")


def cancel(identifiers: list[str]) -> None:
    if identifiers:
        _run("scancel", *identifiers)


def _run(*command: str) -> str:
    try:
        completed = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=SECONDS_TO_ANSWER
        )
    except subprocess.TimeoutExpired as error:
        raise environment_failure(
            f"launcher=slurm: {command[0]} gave no answer in {SECONDS_TO_ANSWER} s"
        ) from error
    if completed.returncode:
        message = one_line(Exception(completed.stderr)).replace(f"{command[0]}: error: ", "")
        raise environment_failure(f"launcher=slurm: {command[0]} failed: {message}")
    return completed.stdout
