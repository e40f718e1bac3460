"""From events to rows, failures and lines on the screen, without an engine."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conf.errors import QuantlineError
from conf.process.messages import Failure, decode, encode
from conf.schema.load import ScenarioConfig
from conf.schema.traffic import CapacityConfig, TrafficLoad
from evaluate.accuracy.divergence import Judgement
from evaluate.measure.events import (
    WORKER,
    CompactRequests,
    EngineLoaded,
    Event,
    MeasureFailed,
    ProfileWritten,
    RunMeasured,
    RunStarted,
    TextRead,
    TrialDone,
    WindowStarted,
)
from evaluate.measure.progress import ProgressDisplay
from evaluate.plan import Planner
from evaluate.record import EventRecorder, _verdict
from evaluate.results.capacity_search import Trial
from evaluate.results.recorder import Recorder
from evaluate.results.results_file import read
from evaluate.results.row_values import QuickAccuracy
from evaluate.results.rows import QuickAccuracyRow, Row, SpeedRow, TrialRow
from evaluate.run import Turn
from tests.conftest import evaluate_config
from tests.evaluate.test_plan import ENVIRONMENT, inspected

VALUES = {"latency_s": 2.0, "ttft_last_s": 0.5, "overlap_share": 0.0}
LOADED = EngineLoaded({"start_s": 9.0}, {"kv_cache_tokens": 320.0}, {"W8A8": "Cutlass"})


@pytest.fixture
def events(tmp_path: Path) -> Iterator[EventRecorder]:
    config = evaluate_config("model=tiny", "repeats=1", f"results={tmp_path / 'results.jsonl'}")
    with ProgressDisplay(1, 1, lambda _: "") as display:
        yield EventRecorder(Recorder(config, ENVIRONMENT), display, None, None)


def take(events: EventRecorder, *sent: Event) -> list[Row]:
    """Records the events as a worker sends them; the rows that lie in the file then."""
    planner = Planner(events.recorder.config, ENVIRONMENT, [], lambda _: False)
    turn = Turn(planner.plan(inspected()), 1)
    lines = [encode(event) for event in sent]
    events.record_events(turn, iter([decode(line, WORKER.events) for line in lines]))
    return read(events.recorder.path)[0]


def run(**changes: Any) -> RunMeasured:
    content: dict[str, Any] = {"measure": "interactive", "repeat": 0, "values": VALUES}
    content |= {"requests": CompactRequests(), "peak_memory_gib": 1.5, "invalid": []}
    return RunMeasured(**(content | changes))


def test_a_run_becomes_a_row(events: EventRecorder) -> None:
    (row,) = take(events, LOADED, RunStarted("interactive", -1), run())
    assert isinstance(row, SpeedRow)
    assert (row.checkpoint, row.measure, row.start) == ("w8", "interactive", 1)
    assert row.values.latency_s == 2.0
    assert row.startup.content() == {"start_s": 9.0}
    assert row.kernels == {"W8A8": "Cutlass"}
    assert row.memory.peak_gib == 1.5
    tokens = row.settings.input_tokens + row.settings.output_tokens
    assert row.memory.kv_cache_requests == pytest.approx(320 / tokens)
    assert row.environment.checkpoint_sha256 == "5ha"
    assert events.display.done == 1
    events.recorder.close()


def test_the_requests_of_a_run_are_kept_as_they_were_sent(events: EventRecorder) -> None:
    requests = CompactRequests({"128": 1}, {"64": 1}, [(0.0, 0.5, 2.0, 1)])
    (row,) = take(events, LOADED, run(requests=requests))
    assert isinstance(row, SpeedRow)
    assert row.requests.output_tokens == {"64": 1}
    assert row.requests.times_s == [(0.0, 0.5, 2.0, 1)]
    assert isinstance(row.requests.times_s[0][3], int)
    events.recorder.close()


def test_a_value_that_is_no_number_makes_the_run_invalid(events: EventRecorder) -> None:
    (row,) = take(events, LOADED, run(values=VALUES | {"energy_j": math.nan}))
    assert row.invalid == ["energy_j is no number"]
    assert "energy_j" not in row.values.names


def test_a_row_that_could_not_be_read_again_is_a_failure(events: EventRecorder) -> None:
    (row,) = take(events, LOADED, run(values={"latency_s": -1.0}))
    assert row.kind == "failed"
    assert row.reason.startswith("the run cannot be recorded: ")
    with pytest.raises(QuantlineError, match="w8: interactive: the run cannot be recorded"):
        events.recorder.close()


def test_what_fails_is_recorded_and_the_worst_code_counts(
    events: EventRecorder, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = EngineLoaded(faults=["the output is broken"])
    rows = take(
        events,
        broken,
        WindowStarted(0, 4),
        MeasureFailed("interactive", Failure("no kernel", 2)),
        ProfileWritten("interactive", "/nowhere/trace.json", 9),
    )
    assert [(row.kind, row.measure) for row in rows] == [
        ("failed", ""), ("failed", "interactive"), ("failed", "interactive"),
    ]  # fmt: skip
    assert rows[0].invalid == ["the output is broken"]
    assert "reading text, window 1 of 4" in capsys.readouterr().err
    with pytest.raises(QuantlineError, match="is not a trace") as caught:
        events.recorder.close()
    assert caught.value.exit_code == 2


def test_text_that_was_read_is_judged(
    events: EventRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def judge(path: Path, original: Path | None, *_: object) -> Judgement:
        asked.append(original)
        return Judgement(QuickAccuracy(verdict="broken", perplexity=900.0), [])

    monkeypatch.setattr("evaluate.record.judged_values", judge)
    events.recorder.config.accuracy.kind = "quick"
    row, failed = take(events, LOADED, TextRead())
    assert isinstance(row, QuickAccuracyRow)
    assert (row.measure, row.values.perplexity) == ("quick", 900.0)
    assert asked == [Path()], "without an original there is nothing to compare with"
    assert failed.reason == "accuracy: the model is broken, perplexity 900"


def test_a_target_that_fails_does_not_stop_the_others(events: EventRecorder) -> None:
    planner = Planner(events.recorder.config, ENVIRONMENT, [], lambda _: False)
    with events.guarded(planner.plan(inspected())):
        raise OSError("the disk is gone")
    (row,) = read(events.recorder.path)[0]
    assert (row.kind, row.reason) == ("failed", "the disk is gone")


def test_a_trial_says_what_its_requests_missed() -> None:
    values = {"late_first_tokens": 13.0, "late_further_tokens": 4.0, "failed_requests": 60.0}
    assert _verdict(False, {"good_share": 0.9, **values}, "HTTP 503: busy") == (
        "misses the targets (at most 90.00% in time; 13 first tokens too late; "
        "4 answers too slow; 60 failed, the first with: HTTP 503: busy)"
    )
    assert _verdict(False, {"good_share": 0.9, "late_further_tokens": 4.0}, "") == (
        "misses the targets (at most 90.00% in time; 4 answers too slow)"
    )
    assert _verdict(True, {"good_share": 1.0}, "") == "meets the targets (100.00% in time)"


def test_a_trial_of_the_curve_is_marked_in_its_row(events: EventRecorder) -> None:
    traffic = TrafficLoad(source="file", sha256="ab", conversations=8, requests=8)
    scenario = ScenarioConfig(
        from_traffic=True, traffic=traffic, rate=4.0, requests=20,
        ttft_ms=500.0, tpot_ms=20.0, capacity=CapacityConfig(curve=1),
    )  # fmt: skip
    trial = TrialDone("interactive", 0, scenario, True, {"good_share": 1.0}, CompactRequests(), [])
    rows = take(events, LOADED, trial, replace(trial, of_curve=True))
    trials = [row.trial for row in rows if isinstance(row, TrialRow)]
    assert trials == [Trial(4.0, True), Trial(4.0, True, of_curve=True)]
