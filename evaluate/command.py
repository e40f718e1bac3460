"""The command `evaluate`: measures, writes the report, and raises the failures."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from conf.compose import Command
from conf.errors import GATE_FAILED, QuantlineError
from conf.schema.commands import LM_EVAL, QUESTIONS, EvaluateConfig
from conf.signals import INTERRUPTION, Terminated, how_to_continue, raised_signals
from conf.terminal import say
from conf.unused.commands import EVALUATE
from evaluate.sweep.hooks import EvaluateSweep

if TYPE_CHECKING:
    from evaluate.measured import Measured

COMMAND = Command(
    "evaluate",
    EvaluateConfig,
    (
        "python -m evaluate scenario=high_concurrency",
        "python -m evaluate 'scenario=[interactive,base]' accuracy=quick",
        "python -m evaluate -m weights=random launcher=slurm launcher.partition=gpu",
    ),
    sweep=EvaluateSweep(),
    unused=EVALUATE,
)


def main(config: EvaluateConfig) -> "Measured":
    """Runs the evaluation. The result converts to a number that a sweeper can minimize."""
    from conf.files.outputs import check_cache
    from evaluate.results.lock import only_writer

    check_cache()
    with kept_when_ended(config.results, config.force):
        if config.results_before:  # a job of a sweep: its shard has no other writer
            return _measure(config)
        with only_writer(Path(config.results)):
            return _measure_and_report(config)


@contextmanager
def kept_when_ended(results: str, force: bool = False) -> Iterator[None]:
    """Ends the command on SIGTERM or SIGHUP as on Ctrl-C, and says where the runs are."""
    try:
        with raised_signals():
            yield
    except Terminated as ended:
        say(f"{ended}; {_what_is_kept(results, force)}")
        sys.exit(ended.exit_code)
    except KeyboardInterrupt as interrupted:  # not an exit: a notebook goes on after it
        kept = _what_is_kept(results, force)
        raise KeyboardInterrupt(f"{INTERRUPTION}; {kept}") from interrupted


def _what_is_kept(results: str, force: bool) -> str:
    is_there = Path(results).expanduser().is_file()
    kept = f"{results} has what was measured" if is_there else ""
    return how_to_continue(kept, "force=true" if force else "")


def _measure_and_report(config: EvaluateConfig) -> "Measured":
    from evaluate.report.at_end import report_at_end
    from evaluate.report.show.cpu_note import explain_slower_on_cpu

    size_before = _size(config)
    failure: QuantlineError | None = None
    measured = None
    try:
        measured = _measure(config)
    except QuantlineError as error:
        if error.exit_code != GATE_FAILED and _size(config) == size_before:
            raise  # nothing was measured
        failure = error
    no_report = report_at_end(config)
    explain_slower_on_cpu(config)
    if failure is not None and no_report is not None:
        say(str(no_report))
    if failure is not None or no_report is not None:
        raise failure or no_report  # type: ignore[misc]
    assert measured is not None
    return measured


def _size(config: EvaluateConfig) -> int:
    results = Path(config.results).expanduser()
    return results.stat().st_size if results.is_file() else 0


def _measure(config: EvaluateConfig) -> "Measured":
    from evaluate.accuracy.sensitivity import measure_sensitivity
    from evaluate.accuracy.tasks.pipeline import measure_tasks
    from evaluate.measured import measured_by
    from evaluate.pipeline import evaluate
    from serve.engine.launch import say_unused_kernels

    if config.accuracy.kind == "sensitivity":
        return measured_by(measure_sensitivity(config))
    say_unused_kernels(config.engine)
    if config.accuracy.kind in (LM_EVAL, QUESTIONS):
        return measured_by(measure_tasks(config))
    return measured_by(evaluate(config))
