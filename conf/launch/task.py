"""A job of a sweep: what it runs, where it records its end, and the program that runs it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from conf.process.program import Program

QUEUED, RUNNING, DONE, FAILED = "queued", "running", "done", "failed"
RecordState = Literal["running", "done", "failed"]
JOB_VARIABLE = "QUANTLINE_JOB"
"""Set in a job's process: its name."""
CPUS_VARIABLE = "QUANTLINE_JOB_CPUS"
"""Set for a job without a GPU that shares its machine with others: the CPUs that it has."""


@dataclass(frozen=True)
class Task:
    """One job. It is sent to other machines, which see the same folders."""

    name: str
    """Names the files of the job. Equal in every call of the same command."""
    module: str
    """The module with the command's COMMAND and main."""
    overrides: list[str]
    sweep_folder: str
    """Records, logs and shards of the sweep."""
    working_folder: str

    @property
    def record_file(self) -> Path:
        return Path(self.sweep_folder) / f"{self.name}.json"

    @property
    def log_file(self) -> Path:
        return Path(self.sweep_folder) / f"{self.name}.log"

    @property
    def shard(self) -> Path:
        """The file of the job's own results."""
        return shard_file(Path(self.sweep_folder), self.name)


def shard_file(sweep_folder: Path, name: str) -> Path:
    return sweep_folder / f"{name}.jsonl"


@dataclass(frozen=True)
class JobEnded:
    """Sent by a job that ended without an error."""

    value: float | None
    """The command's result as a number, for sweepers that optimize."""
    outputs: list[str]
    """What the job made, as the command identifies it."""

    @staticmethod
    def from_message(content: dict[str, Any]) -> "JobEnded":
        value = content["value"]
        outputs = [str(output) for output in content["outputs"]]
        return JobEnded(None if value is None else float(value), outputs)


@dataclass(frozen=True)
class Record:
    """The state of a job, in a file that only the job writes. So no lock is needed."""

    state: RecordState
    overrides: list[str]
    host: str
    attempt: int
    """How often the job was started, from 1."""
    exit_code: int = 0
    message: str = ""
    value: float | None = None
    outputs: list[str] = field(default_factory=list)


JOB = Program("conf.launch.work", Task, (JobEnded,), "the job")
