"""What the worker that holds an engine is asked to measure, and the events that it sends."""

from dataclasses import dataclass, field
from typing import Any

from conf.process.messages import Failure
from conf.process.program import Program
from conf.schema.commands import AccuracyConfig
from conf.schema.load import EngineConfig, ScenarioConfig


@dataclass(frozen=True)
class Job:
    """What one worker measures on one checkpoint."""

    folder: str
    engine: EngineConfig
    scenarios: dict[str, ScenarioConfig]
    repeats: dict[str, list[int]]
    """The runs of each scenario that are still missing."""
    accuracy: AccuracyConfig
    context: int
    vocabulary: int
    dummy: bool
    gpus: int
    log: str
    traces: str | None
    view: str
    """Where its view of the text goes."""
    others: int = 0
    """Processes on the GPU that are not ours, counted before any engine was started."""
    neighbours: int = 0
    """Engines that stand loaded beside this one and are not measured while it is."""


@dataclass(frozen=True)
class EngineLoaded:
    """The engine is ready, and waits for its turn."""

    startup: dict[str, float] = field(default_factory=dict)
    """Seconds to load, compile and capture graphs."""
    memory: dict[str, float] = field(default_factory=dict)
    kernels: dict[str, str] = field(default_factory=dict)
    """The kernel that the engine chose for each scheme."""
    faults: list[str] = field(default_factory=list)
    """Why nothing that it answers counts."""


@dataclass(frozen=True)
class RunStarted:
    """A run begins; a negative number of the repeat is a run that is not timed."""

    measure: str
    repeat: int


@dataclass(frozen=True)
class RunMeasured:
    """A timed run is done."""

    measure: str
    repeat: int
    values: dict[str, float]
    requests: dict[str, Any]
    """Request by request, in few bytes, as a row keeps it."""
    peak_memory_gib: float | None
    invalid: list[str]
    """Why the run must not be ranked; empty for a run that counts."""


@dataclass(frozen=True)
class WindowStarted:
    """The model begins to read a window of the evaluation text."""

    window: int
    windows: int


@dataclass(frozen=True)
class TextRead:
    """The model's view of the whole text is written to the job's file."""


@dataclass(frozen=True)
class ProfileWritten:
    """A profile was recorded."""

    measure: str
    trace: str
    steps: int


@dataclass(frozen=True)
class MeasureFailed:
    """One scenario, or the accuracy, failed; the others go on."""

    measure: str
    failure: Failure


Event = (
    EngineLoaded
    | RunStarted
    | RunMeasured
    | WindowStarted
    | TextRead
    | ProfileWritten
    | MeasureFailed
)
WORKER: Program[Job, Event] = Program(
    "evaluate.measure.worker",
    Job,
    (EngineLoaded, RunStarted, RunMeasured, WindowStarted, TextRead, ProfileWritten, MeasureFailed),
    called="the engine",
)
