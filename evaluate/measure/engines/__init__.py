"""The engines that an evaluation can drive, one file each, imported only when chosen."""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from conf.errors import QuantlineError, bad_input
from conf.schema.load import EngineConfig
from evaluate.measure.metrics import Request
from evaluate.measure.workload import Load
from evaluate.results.row_types import Memory, Startup
from serve.kernels.record import LayerKernels

CANARIES = (
    "The capital of France is",
    "def fibonacci(n):",
    "In the morning she opened the window and",
)
CANARY_TOKENS = 16
NO_SUSTAINED = "a sustained workload needs vLLM: engine=vllm_server, or engine=vllm without HTTP"
Stop = Callable[[Request], bool]
"""Whether a run is decided by a request that got its first token, or is done."""
NO_JUDGE = "this engine cannot judge text: engine=vllm or engine=transformers"


@dataclass
class LoadRequest:
    """The checkpoint and the options that an engine loads."""

    folder: Path
    engine: EngineConfig
    context: int
    """Longest context that the scenarios need."""
    dummy: bool
    """The engine makes random weights; there is no tokenizer."""
    log: Path
    """The engine's log, which also names the kernels that it chose."""
    traces: Path | None = None
    """Folder for profiles; None without profiling."""
    likely: int = 0
    """Number of most likely tokens per position that accuracy needs."""


@dataclass
class Loaded:
    """What is known of an engine once it is ready."""

    startup: Startup = field(default_factory=Startup)
    memory: Memory = field(default_factory=Memory)
    kernels: dict[str, str] = field(default_factory=dict)
    layer_kernels: list[LayerKernels] = field(default_factory=list)


@dataclass
class Positions:
    """A model's log-probabilities for the tokens of a window."""

    chosen: list[float]
    likely: list[list[int]]
    scores: list[list[float]]


class Engine(ABC):
    """A loaded checkpoint that continues token ids."""

    loaded: Loaded
    server_process: int | None = None
    """The process that answers over HTTP, where one was started here."""

    @abstractmethod
    def run_requests(self, load: Load, stop: Stop | None = None) -> list[Request]:
        """Sends each request at its time. Each answer has exactly the planned number of tokens.
        Returns a request for each planned one, in their order. `stop` ends a run early."""

    @abstractmethod
    def tokens_of(self, text: str) -> list[int]:
        """The text as token ids."""

    @abstractmethod
    def generate(self, prompts: list[list[int]], tokens: int) -> list[list[int]]:
        """Greedy continuations, which may end early at the end-of-text token."""

    def answers(self, prompts: list[str], tokens: int) -> list[list[int]]:
        """Greedy answers to text."""
        return self.generate([self.tokens_of(prompt) for prompt in prompts], tokens)

    def score_window(self, window: list[int], likely: int) -> Positions:
        """The log-probability of every token after the first, and those of the most likely
        tokens."""
        raise bad_input(NO_JUDGE)

    def prefix_cache(self) -> tuple[float, float]:
        """Prefix cache hits and queries so far, in prompt tokens."""
        return 0.0, 0.0

    def profile(self, load: Load) -> Path:
        """Runs the requests once under a profiler. Returns the trace's path."""
        raise bad_input("this engine cannot be profiled: engine=vllm or engine=transformers")

    def death(self) -> QuantlineError | None:
        """Why a process of the engine died; None if none did."""
        return None

    def close(self) -> None:  # noqa: B027  (most engines end with their process)
        """Releases the engine's resources."""


def create(load: LoadRequest) -> Engine:
    """Loads the checkpoint in the chosen engine."""
    module = importlib.import_module(f"evaluate.measure.engines.{load.engine.kind}")
    engine: Engine = module.ENGINE(load)
    return engine
