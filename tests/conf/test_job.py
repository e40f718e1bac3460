"""What a job returns: to us, to a launcher in another process, and to a sweeper."""

import pickle
from dataclasses import dataclass
from typing import Any

import pytest
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from conf import job as module
from conf.errors import QuantlineError, gate_failed
from conf.job import Job, JobFailure, Outcome
from evaluate.command import main as evaluate
from evaluate.measured import Measured, MeasuredMedian
from evaluate.report.command import main as report
from quantize.command import main as quantize
from serve.command import main as serve


class StubbornError(Exception):
    """Cannot be pickled, as errors of some libraries."""

    def __reduce__(self) -> Any:
        raise TypeError("no")


@dataclass
class Options:
    """Of a command."""

    word: str = "x"


def run(main: Any, monkeypatch: pytest.MonkeyPatch, mode: str = "RUN") -> Outcome:
    settings = {"mode": mode, "overrides": {"task": ["word=y", "other=z"]}}
    monkeypatch.setattr(HydraConfig, "get", lambda: OmegaConf.create(settings))
    monkeypatch.setattr(module, "RunMode", type("Modes", (), {"MULTIRUN": "MULTIRUN"}))
    outcome = Job(main)(OmegaConf.structured(Options))
    return pickle.loads(pickle.dumps(outcome))


@pytest.mark.parametrize("main", [quantize, evaluate, report, serve])
def test_the_job_of_every_command_can_be_pickled(main: Any) -> None:
    assert pickle.loads(pickle.dumps(Job(main))) == Job(main)


def test_a_failure_is_part_of_the_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Options) -> None:
        raise gate_failed("it is broken")

    failure = run(fail, monkeypatch, "MULTIRUN").failure
    assert failure is not None
    assert (failure.message, failure.exit_code) == ("it is broken", 4)
    assert failure.job == "word=y other=z"
    assert "in fail" in failure.traceback
    assert run(fail, monkeypatch).failure == JobFailure(
        "it is broken", 4, failure.traceback, is_closed_pipe=False
    )


def test_an_error_that_cannot_be_pickled_is_reported_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: Options) -> None:
        raise StubbornError("strange")

    failure = run(fail, monkeypatch).failure
    assert failure is not None
    assert failure.report() == 1
    assert (
        capsys.readouterr().err == "error: StubbornError: strange (QUANTLINE_DEBUG=1 shows where)\n"
    )
    monkeypatch.setenv("QUANTLINE_DEBUG", "1")
    failure.report()
    assert "Traceback" in capsys.readouterr().err


def test_a_sweeper_takes_an_outcome_for_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    medians = [
        MeasuredMedian("w8", "base", "latency_s", 2.0),
        MeasuredMedian("w8", "long", "latency_s", 8.0),
    ]
    assert float(run(lambda _: Measured(medians), monkeypatch)) == pytest.approx(4.0)
    with pytest.raises(TypeError, match="returns no number"):
        float(run(lambda _: None, monkeypatch))
    with pytest.raises(QuantlineError, match="it is broken") as caught:
        float(Outcome(failure=JobFailure.of(gate_failed("it is broken"))))
    assert caught.value.exit_code == 4
