"""The messages of tasks: the worker's job and events, and the harness's."""

from dataclasses import dataclass, field

from conf.process.messages import Failure
from conf.process.program import Program
from conf.schema.commands import AccuracyConfig
from conf.schema.load import EngineConfig
from serve.kernels.record import LayerKernels

AT_ONCE = 32  # requests that a server holds


@dataclass(frozen=True)
class Task:
    """One task or group of tasks."""

    name: str
    folder: str = ""
    """The folder of its file; empty for one of the harness's own tasks."""
    sha256: str = ""
    """Hash of all files that may belong to the task."""
    runs_code: bool = False
    """Answers are programs. They are run to score them."""


@dataclass(frozen=True)
class CheckpointJob:
    """One checkpoint and the tasks that it answers."""

    name: str
    folder: str
    context: int
    samples: dict[str, str]
    """The folder for the samples of each task."""
    log: str


@dataclass(frozen=True)
class TasksJob:
    """The tasks and checkpoints of one worker."""

    interpreter: str
    engine: EngineConfig
    accuracy: AccuracyConfig
    tasks: list[Task]
    checkpoints: list[CheckpointJob]
    log: str
    variables: dict[str, str] = field(default_factory=dict)
    """Environment variables for the harness."""
    neighbours: int = 0
    """Servers of other workers that run at the same time."""


@dataclass(frozen=True)
class ServerStarting:
    """A checkpoint is being loaded into a server."""

    checkpoint: str
    log: str


@dataclass(frozen=True)
class ServerReady:
    """A checkpoint's server is ready."""

    checkpoint: str
    startup: dict[str, float] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)
    kernels: dict[str, str] = field(default_factory=dict)
    layer_kernels: list[LayerKernels] = field(default_factory=list)


@dataclass(frozen=True)
class TaskProgress:
    """How many requests of a task are answered."""

    checkpoint: str
    task: str
    done: int
    total: int


@dataclass(frozen=True)
class TaskAnswered:
    """The samples of a task are in their folder."""

    checkpoint: str
    task: str


@dataclass(frozen=True)
class TaskFailed:
    """A task failed, or the whole checkpoint if no task is named. The others go on."""

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
    """Loads tasks in the harness, before any server is started."""

    tasks: list[Task]
    defaults: bool
    """Whether to read the harness's own tasks."""


@dataclass(frozen=True)
class TasksLoaded:
    """The result of loading tasks."""

    unknown: dict[str, list[str]]
    """Unknown names, each with similar known ones."""
    problems: dict[str, str]
    """Tasks that cannot be loaded, and why."""


@dataclass(frozen=True)
class ModelArguments:
    """Arguments of the harness's model class, by its own names."""

    model: str
    base_url: str
    tokenizer: str
    max_length: int
    num_concurrent: int
    timeout: int
    seed: int
    add_bos_token: bool
    """A chat template writes the first token itself. Otherwise the tokenizer has to add it, if the
    model was trained with one."""
    tokenizer_backend: str = "huggingface"


@dataclass(frozen=True)
class AskTask:
    """Runs one task of the harness on a server; writes the samples to the folder."""

    task: str
    beside: str
    """The folder of the task's file; empty for one of the harness's own tasks."""
    folder: str
    fewshot: int | None
    limit: int | None
    seed: int
    chat_template: bool
    model: ModelArguments


@dataclass(frozen=True)
class SamplesWritten:
    """The task's samples are in the folder."""


@dataclass(frozen=True)
class AskFailed:
    """The harness could not load or ask the tasks."""

    message: str


HarnessEvent = TasksLoaded | SamplesWritten | AskFailed
HARNESS_EVENTS: tuple[type[HarnessEvent], ...] = (TasksLoaded, SamplesWritten, AskFailed)
