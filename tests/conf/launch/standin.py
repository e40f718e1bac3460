"""`evaluate` with a measurement that needs no engine: it writes a row for each repeat.

Before repeat N it waits for the file `go-N` in the folder that GATES names, so that a test
can stop a job in between. A recipe that FAILS names fails.
"""

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from conf.app import run
from conf.errors import QuantlineError, gate_failed
from conf.schema.commands import EvaluateConfig
from evaluate.command import COMMAND as EVALUATE
from evaluate.measure.environment import environment
from evaluate.measured import Measured, MeasuredMedian
from evaluate.results.recorder import earlier_rows
from evaluate.results.results_file import append
from evaluate.results.rows import SpeedRow
from evaluate.sweep.hooks import EvaluateSweep
from tests.evaluate.made_rows import speed_row

GATES, FAILS = "QUANTLINE_STANDIN_GATES", "QUANTLINE_STANDIN_FAILS"
TINY = ("model=tiny", "weights=random", "engine=transformers")


class StandInSweep(EvaluateSweep):
    """Without the report, which these rows have nothing for."""

    def finish(self, configs: list[EvaluateConfig]) -> list[QuantlineError]:
        return []


COMMAND = replace(EVALUATE, sweep=StandInSweep())


def main(config: EvaluateConfig) -> Measured:
    name = (config.recipes or ["original"])[-1]
    if name in os.environ.get(FAILS, "").split(","):
        raise gate_failed(f"{name} is broken")
    done = {row.repeat for row in earlier_rows(config) if row.checkpoint == name}
    for repeat in range(config.repeats):
        _wait_for_gate(repeat)
        if repeat not in done:
            append(Path(config.results), _row(config, name, repeat))
    return Measured([MeasuredMedian(name, "base", "latency_s", 2.0)])


def _wait_for_gate(repeat: int) -> None:
    if folder := os.environ.get(GATES):
        while not (Path(folder) / f"go-{repeat}").exists():
            time.sleep(0.05)


def _row(config: EvaluateConfig, name: str, repeat: int) -> SpeedRow:
    """A row whose version says which GPUs the job saw, and in which process it ran."""
    versions = {"gpus": os.environ.get("CUDA_VISIBLE_DEVICES", "all"), "process": str(os.getpid())}
    here = environment(config.gpu, config.engine).with_fields(versions=versions)
    return speed_row(model="tiny", checkpoint=name, repeat=repeat, key=name, environment=here)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # The job's processes import this module by its name, not as __main__.
    from tests.conf.launch import standin

    run(standin.COMMAND, standin.main)
    sys.exit()
