"""The engines that an evaluation can drive, one file each, imported only when chosen."""

import importlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conf.errors import QuantlineError, bad_input
from conf.schema.load import EngineConfig, ScenarioConfig
from evaluate.measure.metrics import Request
from evaluate.results.row_types import Memory, Startup

CANARIES = (
    "The capital of France is",
    "def fibonacci(n):",
    "In the morning she opened the window and",
)
CANARY_TOKENS = 16
NO_LASTING = "a load that lasts needs vLLM: engine=vllm_server, or engine=vllm without HTTP"
NO_JUDGE = "this engine cannot judge text: engine=vllm or engine=transformers"


@dataclass
class LoadRequest:
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
    likely: int = 0
    """Most likely tokens that it will be asked for at a position."""


@dataclass
class Loaded:
    """What an engine says of itself once it is ready."""

    startup: Startup = field(default_factory=Startup)
    memory: Memory = field(default_factory=Memory)
    kernels: dict[str, str] = field(default_factory=dict)

    def content(self) -> dict[str, Any]:
        """As it goes to the process above."""
        return {
            "startup": self.startup.content(),
            "memory": self.memory.content(),
            "kernels": self.kernels,
        }


@dataclass
class Positions:
    """What a model thinks of the tokens of a window."""

    chosen: list[float]
    likely: list[list[int]]
    scores: list[list[float]]


class Engine(ABC):
    """A loaded checkpoint that answers token ids."""

    loaded: Loaded

    @abstractmethod
    def run_requests(self, prompts: list[list[int]], scenario: ScenarioConfig) -> list[Request]:
        """The prompts, when the scenario sends them; exactly as many tokens out as it asks for."""

    @abstractmethod
    def tokens_of(self, text: str) -> list[int]:
        """The text as token ids."""

    @abstractmethod
    def generate(self, prompts: list[list[int]], tokens: int) -> list[list[int]]:
        """Greedy continuations, ended where the model ends them."""

    def answers(self, prompts: list[str], tokens: int) -> list[list[int]]:
        """Greedy answers to text."""
        return self.generate([self.tokens_of(prompt) for prompt in prompts], tokens)

    def score_window(self, window: list[int], likely: int) -> Positions:
        """For every token after the first: its log-probability, and the most likely tokens'."""
        raise bad_input(NO_JUDGE)

    def prefix_cache(self) -> tuple[float, float]:
        """Prompt tokens found in the prefix cache so far, and looked up there."""
        return 0.0, 0.0

    def profile(self, prompts: list[list[int]], scenario: ScenarioConfig) -> Path:
        """Runs the prompts once under a profiler; the trace it wrote."""
        raise bad_input("this engine cannot be profiled: engine=vllm or engine=transformers")

    def death(self) -> QuantlineError | None:
        """Why a process of the engine is gone; none where all of them live, or there is none."""
        return None

    def close(self) -> None:  # noqa: B027  (most hold nothing that outlives their process)
        """Gives back what it holds."""


def create(load: LoadRequest) -> Engine:
    """Loads the checkpoint in the engine that was asked for."""
    module = importlib.import_module(f"evaluate.measure.engines.{load.engine.kind}")
    engine: Engine = module.ENGINE(load)
    return engine
