"""What the report answers to other commands, in a process of its own."""

from dataclasses import dataclass
from typing import Any

from conf.process.program import Program
from conf.schema.report import TargetsConfig


@dataclass(frozen=True)
class ServeRequest:
    """What to serve of a model on this machine, by a file of results?"""

    results: str
    targets: TargetsConfig
    mix: dict[str, float]
    model: str
    device: str | None
    cpu: str


@dataclass(frozen=True)
class Recommended:
    """The checkpoint to serve, and the options that it was measured with."""

    checkpoint: str
    candidate: str
    why: str
    options: dict[str, Any]
    """Of vLLM."""
    reasons: dict[str, str]
    """Why each option is set."""


RECOMMEND = Program("evaluate.report.answer", ServeRequest, (Recommended,))
