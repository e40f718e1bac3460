"""The Python API: the commands `quantize`, `evaluate` and `evaluate.report` as functions.

Each function composes the config of its command from its arguments, runs the command's own code and
returns typed results. An argument that is None keeps the command's default. `overrides` takes any
other option as the command line does: `overrides=["engine.max_model_len=4096"]`. Errors are raised
as QuantlineError, whose `exit_code` is the command's. A bad option is found before any long work.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig

from conf.compose import COMPOSE_ERRORS, Command, compose
from conf.entry import set_child_import_path
from conf.errors import QuantlineError, bad_input, message_and_code
from conf.explain import explain
from conf.launch.options import NONE
from conf.override_text import option_text
from conf.schema.report import ReportConfig
from conf.unused.rule import check_unused, unused_options
from evaluate.measured import MeasuredMedian
from evaluate.report.decide.decision import Answer
from evaluate.report.decide.recommend import Choice
from evaluate.results.rows import Row
from quantize.checkpoint.manifest import Manifest

__all__ = [
    "Answer",
    "Checkpoint",
    "Choice",
    "Evaluation",
    "Manifest",
    "MeasuredMedian",
    "QuantlineError",
    "Recommendation",
    "Row",
    "evaluate",
    "quantize",
    "recommend",
]

Names = str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class Checkpoint:
    """A published checkpoint."""

    path: Path
    manifest: Manifest
    """The content of its quantline.json."""


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation measured."""

    results: Path
    """The file that holds the rows."""
    rows: list[Row]
    """The rows of this evaluation: new ones, and those that the file had for it already."""
    medians: list[MeasuredMedian]
    """The median latency of each checkpoint in each scenario."""


@dataclass(frozen=True)
class Recommendation:
    """What to serve."""

    answers: list[Answer]
    """One for each model, device and engine in the results."""
    faults: list[str]
    """Lines that could not be read, as file:line."""

    @property
    def best(self) -> Choice:
        """The choice for the mix, in the first answer."""
        if not self.answers:
            raise bad_input("the results hold no speed, so there is nothing to recommend")
        return self.answers[0].overall


def quantize(
    *,
    model: str | None = None,
    recipe: str | None = None,
    model_path: str | Path | None = None,
    calibration: str | None = None,
    samples: int | None = None,
    length: int | None = None,
    output_dir: str | Path | None = None,
    replace: bool | None = None,
    push: str | None = None,
    overrides: Sequence[str] = (),
) -> Checkpoint:
    """`python -m quantize`: calibrates, verifies and publishes a checkpoint."""
    from quantize.checkpoint.manifest import read
    from quantize.command import COMMAND, main

    options = {
        "model": model,
        "recipe": recipe,
        "model.path": model_path,
        "calibration": calibration,
        "calibration.samples": samples,
        "calibration.length": length,
        "output_dir": output_dir,
        "replace": replace,
        "push": push,
    }
    with _running():
        config = _config(COMMAND, options, overrides)
        if config.preflight == "only":
            raise bad_input("preflight=only: makes no checkpoint; use the command")
        folder = main(config)
        assert folder is not None
        return Checkpoint(folder, read(folder))


def evaluate(
    *,
    model: str | None = None,
    scenario: str | Sequence[str] | None = None,
    engine: str | None = None,
    accuracy: str | None = None,
    checkpoints: Names | None = None,
    checkpoint_root: str | Path | None = None,
    weights: str | None = None,
    recipes: str | Sequence[str] | None = None,
    results: str | Path | None = None,
    repeats: int | None = None,
    force: bool | None = None,
    overrides: Sequence[str] = (),
) -> Evaluation:
    """`python -m evaluate`: measures checkpoints beside the original, and writes the report."""
    from evaluate.command import COMMAND, main

    options = {
        "model": model,
        "scenario": scenario,
        "engine": engine,
        "accuracy": accuracy,
        "checkpoints": [checkpoints] if isinstance(checkpoints, str | Path) else checkpoints,
        "checkpoint_root": checkpoint_root,
        "weights": weights,
        "recipes": [recipes] if isinstance(recipes, str) else recipes,
        "results": results,
        "repeats": repeats,
        "force": force,
    }
    with _running():
        config = _config(COMMAND, options, overrides)
        measured = main(config)
        return Evaluation(Path(config.results).expanduser(), measured.rows, measured.medians)


def recommend(
    *,
    results: Names = "results.jsonl",
    ttft_ms: float | None = None,
    tpot_ms: float | None = None,
    max_memory_gib: float | None = None,
    min_recovery: float | None = None,
    mix: Mapping[str, float] | None = None,
    out: str | Path | None = None,
    overrides: Sequence[str] = (),
) -> Recommendation:
    """`python -m evaluate.report`: decides what to serve under these targets. Writes the report
    only if `out` names its folder."""
    from evaluate.report.command import COMMAND
    from evaluate.report.contents import make_report
    from evaluate.report.writing import write_report

    if mix is not None and not isinstance(mix, Mapping):
        raise bad_input(f"mix={mix!r}: give shares by scenario, as {{'interactive': 0.6}}")
    options = {
        "results": [results] if isinstance(results, str | Path) else results,
        "targets.ttft_ms": ttft_ms,
        "targets.tpot_ms": tpot_ms,
        "targets.max_memory_gib": max_memory_gib,
        "targets.min_recovery": min_recovery,
        "out": out,
        **{f"mix.{name}": share for name, share in (mix or {}).items()},
    }
    with _running():
        config: ReportConfig = _config(COMMAND, options, overrides)
        if config.answer is not None:
            raise bad_input(f"answer={config.answer}: prints the answer; use the command")
        is_written = out is not None or config.out != ReportConfig().out
        report = write_report(config) if is_written else make_report(config)
        return Recommendation(report.answers, report.faults)


def _config(command: Command, options: Mapping[str, Any], overrides: Sequence[str]) -> Any:
    """The command's typed config."""
    is_list = isinstance(overrides, Sequence) and not isinstance(overrides, str)
    if not is_list or not all(isinstance(text, str) for text in overrides):
        raise bad_input(f"overrides={overrides!r}: give a list of options, as ['NAME=VALUE']")
    given = []
    for name, value in options.items():
        try:
            given += [] if value is None else [option_text(name, value)]
        except ValueError as error:
            raise bad_input(f"{name}: {error}") from error
    try:
        config = compose(command, [*given, *overrides])
        if command.sweep is not None and config.launcher.kind != NONE:
            raise bad_input(f"launcher={config.launcher.kind}: works only for a sweep, with -m")
        check_unused(unused_options(command.unused, config, [*given, *overrides]))
        return config
    except COMPOSE_ERRORS as error:
        raise bad_input(explain(error)) from error


@contextmanager
def _running() -> Iterator[None]:
    """Processes that are started find our packages; every error is a QuantlineError. Afterwards the
    environment and Hydra are as the caller had them."""
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "PYTHONSAFEPATH")}
    hydra, hydra_config = GlobalHydra.instance().hydra, HydraConfig.instance().cfg
    set_child_import_path()
    try:
        yield
    except QuantlineError:
        raise
    except Exception as error:
        raise QuantlineError(*message_and_code(error)) from error
    finally:
        GlobalHydra.instance().hydra, HydraConfig.instance().cfg = hydra, hydra_config
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
