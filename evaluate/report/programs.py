"""The requests and answers of the report's processes, for other commands and for itself."""

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


@dataclass(frozen=True)
class DrawRequest:
    """Asks for charts as SVG files."""

    out: str
    specs: dict[str, str]
    """Vega-Lite's JSON of each chart, by the name of its file."""


@dataclass(frozen=True)
class Drawn:
    """All charts are drawn, but for these."""

    failures: dict[str, str]
    """The reasons, by the name of the file."""


DRAW = Program("evaluate.report.show.charts.draw_process", DrawRequest, (Drawn,), "the plots")
