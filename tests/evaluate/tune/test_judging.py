"""Settings that change answers: the text read with and without them, by engines made up here."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy
import pytest

from conf.errors import environment_failure
from conf.process.messages import Failure
from conf.schema.load import EngineConfig
from evaluate.measure.environment import environment
from evaluate.measure.events import Event, MeasureFailed, TextRead, WindowStarted
from evaluate.measure.targets import Target
from evaluate.measure.text_view import TextView
from evaluate.plan import Inspected
from evaluate.results.recorder import Recorder
from evaluate.run import Turn
from evaluate.tune.display import TuneDisplay
from evaluate.tune.judging import judge_answers
from evaluate.tune.target import TunedCheckpoint
from evaluate.tune.trials import Budget, Judgement
from tests.conftest import evaluate_config
from tests.evaluate.test_plan import CONFIG, WEIGHT

POSITIONS, LIKELY = 512, 4
CHANGED = EngineConfig(options={"kv_cache_dtype": "fp8"})


def view(loss: float) -> TextView:
    """A view whose tokens are less likely by the loss."""
    chosen = numpy.full(POSITIONS, -1.0 - loss, "float32")
    scores = numpy.tile(numpy.log(numpy.array([0.4, 0.3, 0.2, 0.05], "float32")), (POSITIONS, 1))
    likely = numpy.tile(numpy.arange(LIKELY, dtype="int32"), (POSITIONS, 1))
    continued = numpy.zeros((2, 8), "int32")
    return TextView(numpy.arange(POSITIONS, dtype="int32"), chosen, likely, scores, continued)


def judged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, loss: float, failure: str = ""
) -> Judgement:
    class MadeUpGroup:
        def __init__(self, config: object, turns: list[Turn], results: Path) -> None:
            self.turn = turns[0]

        def __enter__(self) -> "MadeUpGroup":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def load(self, place: int, loading: Callable[[str], None]) -> None:
            assert self.turn.plan.judges
            assert self.turn.plan.runs == 1, "the text alone, and no timed run"

        def measure(self, place: int) -> Iterator[Event]:
            options = self.turn.plan.environment.engine_options
            is_changed = "kv_cache_dtype" in options
            yield WindowStarted(0, 1)
            if is_changed and failure:
                yield MeasureFailed("quick", Failure.of(environment_failure(failure)))
            view(loss if is_changed else 0.0).save(self.turn.plan.view)
            yield TextRead()

    monkeypatch.setattr("evaluate.tune.judging.Group", MadeUpGroup)
    monkeypatch.setenv("QUANTLINE_CACHE", str(tmp_path / "cache"))
    config = evaluate_config("model=tiny", f"results={tmp_path / 'r.jsonl'}", "engine=vllm_server")
    accuracy = evaluate_config("model=tiny", "accuracy=quick").accuracy
    inspected = Inspected(Target("w8", Path("/m")), Path("/m"), CONFIG, "5ha", None, WEIGHT)
    recorder = Recorder(config, environment(config.gpu, config.engine))
    return judge_answers(
        TunedCheckpoint(config, Path("/m"), inspected),
        [EngineConfig(), CHANGED],
        accuracy,
        recorder,
        TuneDisplay(Budget(60.0)),
    )


def test_settings_that_lose_nothing_are_good(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    judgement = judged(monkeypatch, tmp_path, 0.0)
    assert judgement.is_good
    assert "no loss seen, 1.0000 of the quality with default settings" in judgement.text


def test_settings_that_lose_quality_are_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    judgement = judged(monkeypatch, tmp_path, 0.1)
    assert not judgement.is_good
    assert "accuracy: loss, 0.90" in judgement.text


def test_settings_that_cannot_be_judged_are_not_served(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    judgement = judged(monkeypatch, tmp_path, 0.0, failure="no scales")
    assert not judgement.is_good
    assert judgement.text == "accuracy could not be judged: no scales"
