"""The job of the worker that holds an engine, and the events that it sends."""

from dataclasses import dataclass, field

from conf.process.messages import Failure
from conf.process.program import Program
from conf.schema.commands import AccuracyConfig
from conf.schema.load import EngineConfig, ScenarioConfig
from evaluate.results.late_requests import RequestPace
from serve.kernels.record import LayerKernels


@dataclass(frozen=True)
class RecordedTrial:
    """A trial of an interrupted search."""

    repeat: int
    rate: float
    meets: bool
    of_curve: bool = False


@dataclass(frozen=True)
class Job:
    """The measurements of one worker on one checkpoint."""

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
    """The file for its view of the text."""
    others: list[int] = field(default_factory=list)
    """The processes that were on the GPU before any engine was started, and are not ours."""
    trials: dict[str, list[RecordedTrial]] = field(default_factory=dict)
    """Earlier trials of each capacity search in this start."""
    neighbours: int = 0
    """Other engines that are loaded at the same time, and idle while this one is measured."""


@dataclass(frozen=True)
class EngineLoaded:
    """The engine is ready, and waits for its turn."""

    startup: dict[str, float] = field(default_factory=dict)
    """Seconds to load, compile and capture graphs."""
    memory: dict[str, float] = field(default_factory=dict)
    kernels: dict[str, str] = field(default_factory=dict)
    """The kernel that the engine chose for each scheme."""
    layer_kernels: list[LayerKernels] = field(default_factory=list)
    """What each kind of layer runs, where our kernels were offered."""
    faults: list[str] = field(default_factory=list)
    """Why its answers are not valid."""


@dataclass(frozen=True)
class RunStarted:
    """A run begins. A negative repeat is an untimed run."""

    measure: str
    repeat: int


RequestTimes = tuple[float, float, float, int]
"""When requests were sent, when their first and last token came, and how many share that."""


@dataclass(frozen=True)
class CompactRequests:
    """All requests of a run, as a row stores them."""

    input_tokens: dict[str, int] = field(default_factory=dict)
    """Number of requests by their number of input tokens."""
    output_tokens: dict[str, int] = field(default_factory=dict)
    times_s: list[RequestTimes] = field(default_factory=list)


@dataclass(frozen=True)
class RunMeasured:
    """A timed run is done."""

    measure: str
    repeat: int
    values: dict[str, float]
    requests: CompactRequests
    peak_memory_gib: float | None
    invalid: list[str]
    """Why the run must not be ranked; empty for a valid run."""


@dataclass(frozen=True)
class TrialDone:
    """One rate of a capacity search was tried."""

    measure: str
    repeat: int
    scenario: ScenarioConfig
    meets: bool
    values: dict[str, float]
    requests: CompactRequests
    invalid: list[str]
    error: str = ""
    """Of the first request that failed."""
    of_curve: bool = False
    """Whether it follows the search, for the curve."""
    slowest_s: list[RequestPace] = field(default_factory=list)
    """The requests that decide any targets."""


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
    | TrialDone
    | WindowStarted
    | TextRead
    | ProfileWritten
    | MeasureFailed
)
WORKER: Program[Job, Event] = Program(
    "evaluate.measure.worker",
    Job,
    (
        EngineLoaded,
        RunStarted,
        RunMeasured,
        TrialDone,
        WindowStarted,
        TextRead,
        ProfileWritten,
        MeasureFailed,
    ),
    called="the engine",
)
