"""The request and answer of the report's process, for other commands."""

from dataclasses import dataclass

from conf.process.program import Program
from conf.schema.load import EngineOptions
from conf.schema.report import TargetsConfig


@dataclass(frozen=True)
class ServeRequest:
    """Asks which checkpoint of a model to serve on this machine, by a results file."""

    results: str
    targets: TargetsConfig
    mix: dict[str, float]
    model: str
    device: str | None
    cpu: str


@dataclass(frozen=True)
class Recommended:
    """The checkpoint to serve, and the options of its measurement."""

    checkpoint: str
    candidate: str
    why: str
    options: EngineOptions
    """vLLM options."""
    reasons: dict[str, str]
    """Why each option is set."""


RECOMMEND = Program("evaluate.report.answer", ServeRequest, (Recommended,))
