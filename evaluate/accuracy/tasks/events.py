"""What the worker of accuracy=lm_eval is asked, the events that it sends, and the harness's own."""

from dataclasses import dataclass, field
from typing import Any

from conf.process.messages import Failure
from conf.process.program import Program
from conf.schema.commands import AccuracyConfig
from conf.schema.load import EngineConfig


@dataclass(frozen=True)
class Task:
    """One task or group that was asked for."""

    name: str
    folder: str = ""
    """Where its file lies; empty for one that comes with the harness."""
    sha256: str = ""
    """Of its file and of what lies beside it and may be part of it."""


@dataclass(frozen=True)
class CheckpointJob:
    """One checkpoint and the tasks that it answers."""

    name: str
    folder: str
    context: int
    samples: dict[str, str]
    """For each task, the folder that its samples go to."""
    log: str


@dataclass(frozen=True)
class TasksJob:
    """Everything that is asked in one run."""

    interpreter: str
    engine: EngineConfig
    accuracy: AccuracyConfig
    tasks: list[Task]
    checkpoints: list[CheckpointJob]
    log: str


@dataclass(frozen=True)
class ServerStarting:
    """A checkpoint is being loaded into a server."""

    checkpoint: str
    log: str


@dataclass(frozen=True)
class ServerReady:
    """Its server answers."""

    checkpoint: str
    startup: dict[str, float] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)
    kernels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskProgress:
    """How many requests of a task are answered."""

    checkpoint: str
    task: str
    done: int
    total: int


@dataclass(frozen=True)
class TaskAnswered:
    """The samples of a task lie in their folder."""

    checkpoint: str
    task: str


@dataclass(frozen=True)
class TaskFailed:
    """A task failed, or a whole checkpoint where no task is named; the others go on."""

    checkpoint: str
    task: str
    failure: Failure


Event = ServerStarting | ServerReady | TaskProgress | TaskAnswered | TaskFailed
TASKS_WORKER: Program[TasksJob, Event] = Program(
    "evaluate.accuracy.tasks.worker",
    TasksJob,
    (ServerStarting, ServerReady, TaskProgress, TaskAnswered, TaskFailed),
    called="the engine",
)


@dataclass(frozen=True)
class LoadTasks:
    """Has the harness load tasks, before any server is started."""

    tasks: list[Task]
    defaults: bool
    """Whether those that come with the harness are looked through."""


@dataclass(frozen=True)
class TasksLoaded:
    """What the harness found of the tasks."""

    unknown: dict[str, list[str]]
    """Names that it does not have, and those that are close."""
    problems: dict[str, str]
    """Tasks that cannot be loaded, and why."""


@dataclass(frozen=True)
class AskTask:
    """Has the harness ask a server one task; the samples go to the folder."""

    task: str
    beside: str
    """The folder that the task's file lies in; empty for one that comes with the harness."""
    folder: str
    fewshot: int | None
    limit: int | None
    seed: int
    chat_template: bool
    model: dict[str, Any]
    """Arguments of the harness's own class."""


@dataclass(frozen=True)
class SamplesWritten:
    """The task's samples are in the folder."""


@dataclass(frozen=True)
class AskFailed:
    """The harness could not load or ask the tasks."""

    message: str


HarnessEvent = TasksLoaded | SamplesWritten | AskFailed
HARNESS_EVENTS: tuple[type[HarnessEvent], ...] = (TasksLoaded, SamplesWritten, AskFailed)
