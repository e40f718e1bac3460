"""The command `evaluate`: measures, writes the report, and raises the failures."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from conf.compose import Command
from conf.errors import GATE_FAILED, QuantlineError
from conf.schema.commands import LM_EVAL, QUESTIONS, EvaluateConfig
from conf.terminal import say
from evaluate.sweep.hooks import EvaluateSweep

if TYPE_CHECKING:
    from evaluate.measured import Measured

TERMINATED = 128 + signal.SIGTERM

COMMAND = Command(
    "evaluate",
    EvaluateConfig,
    (
        "python -m evaluate scenario=high_concurrency",
        "python -m evaluate 'scenario=[interactive,base]' accuracy=quick",
        "python -m evaluate -m weights=random launcher=slurm launcher.partition=gpu",
    ),
    sweep=EvaluateSweep(),
)


class Terminated(BaseException):
    """SIGTERM was received. A BaseException, so that it is not recorded as a failed measurement."""


def main(config: EvaluateConfig) -> "Measured":
    """Runs the evaluation. The result converts to a number that a sweeper can minimize."""
    from evaluate.results.lock import only_writer

    with ended_by_sigterm(config.results):
        if config.results_before:  # a job of a sweep: its shard has no other writer
            return _measure(config)
        with only_writer(Path(config.results)):
            return _measure_and_report(config)


@contextmanager
def ended_by_sigterm(results: str) -> Iterator[None]:
    """Makes SIGTERM end the command as Ctrl-C does, including the processes that it started."""

    def end(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # ignore further signals
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals; a caller's program handles its own
        return
    previous_handler = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except Terminated:
        say(f"ended by SIGTERM; {results} has what was measured; the same command continues")
        sys.exit(TERMINATED)
    finally:
        signal.signal(signal.SIGTERM, previous_handler)


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

    if config.accuracy.kind == "sensitivity":
        return measured_by(measure_sensitivity(config))
    if config.accuracy.kind in (LM_EVAL, QUESTIONS):
        return measured_by(measure_tasks(config))
    return measured_by(evaluate(config))
