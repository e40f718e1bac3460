"""The engines that an evaluation can drive, one file each, imported only when chosen."""

import importlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path

from conf.errors import bad_input
from conf.load_schema import EngineConfig, ScenarioConfig
from evaluate.metrics import Request

CANARIES = (
    "The capital of France is",
    "def fibonacci(n):",
    "In the morning she opened the window and",
)
CANARY_TOKENS = 16


@dataclass
class Load:
    """What an engine is asked to load."""

    folder: Path
    engine: EngineConfig
    context: int
    """Longest context that the scenarios need."""
    dummy: bool
    """Weights are made up by the engine; there is no tokenizer."""
    log: Path
    """Where its chatter goes, which also says what it chose."""
    traces: Path | None = None
    """Folder for profiles; null for none."""


@dataclass
class Loaded:
    """What an engine says of itself once it is ready."""

    startup: dict[str, float] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)
    kernels: dict[str, str] = field(default_factory=dict)


class Engine(ABC):
    """A loaded checkpoint that answers token ids."""

    loaded: Loaded

    @abstractmethod
    def batch(self, prompts: list[list[int]], output_tokens: int) -> list[Request]:
        """All prompts at once; exactly as many tokens out as asked for."""

    @abstractmethod
    def answers(self, prompts: list[str], tokens: int) -> list[list[int]]:
        """Greedy answers to text, ended where the model ends them."""

    def lasting(self, prompts: list[list[int]], scenario: ScenarioConfig) -> list[Request]:
        """Prompts that keep coming, as the scenario says."""
        raise bad_input("a load that lasts needs a server: engine=vllm_server")

    def log_probabilities(self, windows: list[list[int]]) -> list[list[float]]:
        """For each window the log-probability of every token after the first."""
        raise bad_input("this engine cannot judge text: engine=vllm or engine=transformers")

    def tokens_of(self, text: str) -> list[int]:
        """The text as token ids."""
        raise bad_input("this engine cannot judge text: engine=vllm or engine=transformers")

    def prefix_cache(self) -> tuple[float, float]:
        """Prompt tokens found in the prefix cache so far, and looked up there."""
        return 0.0, 0.0

    def profile(self, prompts: list[list[int]], output_tokens: int) -> Path:
        """Runs the prompts once under a profiler; the trace it wrote."""
        raise bad_input("this engine cannot be profiled: engine=vllm or engine=transformers")

    def close(self) -> None:  # noqa: B027  (most hold nothing that outlives their process)
        """Gives back what it holds."""


def create(load: Load) -> Engine:
    """Loads the checkpoint in the engine that was asked for."""
    module = importlib.import_module(f"evaluate.engines.{load.engine.kind}")
    engine: Engine = module.ENGINE(load)
    return engine
