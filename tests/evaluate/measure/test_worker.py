"""What a worker sends to an engine, with an engine that answers at once."""

from dataclasses import replace
from pathlib import Path

import pytest

from conf.schema.commands import AccuracyConfig
from conf.schema.load import EngineConfig, ScenarioConfig
from conf.schema.traffic import CapacityConfig, TrafficLoad
from evaluate.measure import worker
from evaluate.measure.engines import Engine, Loaded, LoadRequest, Stop
from evaluate.measure.events import Event, Job, TrialDone
from evaluate.measure.metrics import Request
from evaluate.measure.traffic.resolved import (
    ResolvedConversation,
    ResolvedTurn,
    TokenPassage,
    write_resolved,
)
from evaluate.measure.workload import Load
from evaluate.results.capacity_search import Trial, found

COUNT = 400


class Instant(Engine):
    """Answers in a millisecond, and a request too late once more arrive than it holds."""

    loaded = Loaded()

    def __init__(self, holds: float) -> None:
        self.holds, self.loads = holds, list[Load]()

    def run_requests(self, load: Load, stop: Stop | None = None) -> list[Request]:
        self.loads.append(load)
        times = [planned.arrival_s for planned in load.requests]
        late = 1.0 if times[-1] and len(times) / times[-1] > self.holds else 0.0
        requests = [
            Request(len(planned.prompt), [time + late + 0.001, time + late + 0.002], time)
            for planned, time in zip(load.requests, times, strict=True)
        ]
        for request in requests:
            if stop is not None:
                stop(request)
        return requests

    def tokens_of(self, text: str) -> list[int]:
        return [1] * len(text)

    def generate(self, prompts: list[list[int]], tokens: int) -> list[list[int]]:
        return [[*range(tokens)] for _ in prompts]


def searched(
    name: str, engine: Instant, monkeypatch: pytest.MonkeyPatch, folder: Path, **options: float
) -> list[Event]:
    """The events of two searches of a checkpoint in this engine."""
    conversation = ResolvedConversation([TokenPassage(tokens=3), TokenPassage(tokens=2)], [])
    conversation = replace(conversation, turns=[ResolvedTurn(1, 2)])
    traffic = TrafficLoad(
        sha256=write_resolved([conversation] * 8), conversations=8, requests=8, longest_tokens=5
    )
    capacity = CapacityConfig(
        share=0.9, seconds=1.0, least_requests=COUNT, resolution=0.5, first_rate=8.0
    )
    capacity = replace(capacity, **options)  # type: ignore[arg-type]
    scenario = ScenarioConfig(
        from_traffic=True, search=True, traffic=traffic, ttft_ms=100.0, tpot_ms=100.0,
        capacity=capacity,
    )  # fmt: skip

    def create(_: LoadRequest) -> Instant:
        return engine

    events: list[Event] = []
    monkeypatch.setattr(worker, "create", create)
    monkeypatch.setattr(worker, "wait_for_turn", lambda: None)
    log = folder / f"{name}.log"
    log.touch()
    job = Job(
        folder=str(folder / name), engine=EngineConfig(kind="vllm_server", url="http://localhost"),
        scenarios={"capacity": scenario}, repeats={"capacity": [0, 1]},
        accuracy=AccuracyConfig(kind="none"), context=64, vocabulary=100, dummy=True, gpus=0,
        log=str(log), traces=None, view="",
    )  # fmt: skip
    worker.work(job, events.append)
    return events


def trials(events: list[Event]) -> list[TrialDone]:
    return [event for event in events if isinstance(event, TrialDone)]


def test_trials_of_all_checkpoints_have_one_pattern_of_arrivals(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two checkpoints hold different rates, so they are searched at different ones."""
    patterns: dict[int, list[list[float]]] = {0: [], 1: []}
    for name, holds in (("original", 30.0), ("fp8", 100.0)):
        engine = Instant(holds)
        done = trials(searched(name, engine, monkeypatch, tmp_path))
        loads = [load for load in engine.loads if load.requests[-1].arrival_s]
        assert len(loads) == len(done)
        for trial, load in zip(done, loads, strict=True):
            assert trial.scenario.rate is not None
            times = [request.arrival_s * trial.scenario.rate for request in load.requests]
            assert trial.scenario.count == COUNT
            patterns[trial.repeat].append(times)
    for same in patterns.values():
        assert len(same) > 4
        assert all(times == pytest.approx(same[0]) for times in same)
    assert patterns[0][0] != pytest.approx(patterns[1][0])


def test_the_first_search_of_a_start_has_a_curve_below_its_rate(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done = trials(searched("original", Instant(30.0), monkeypatch, tmp_path, curve=3))
    of_search = [Trial(t.scenario.rate or 0.0, t.meets) for t in done if not t.of_curve]
    assert not any(trial.of_curve for trial in done if trial.repeat)
    end = found(of_search[: sum(t.repeat == 0 for t in done) - 3], resolution=0.5)
    assert end is not None
    curve = [trial.scenario.rate for trial in done if trial.of_curve]
    assert curve == pytest.approx([end.rate / 8, end.rate * 10 / 24, end.rate * 17 / 24])


def test_trials_that_hold_their_rate_keep_the_times_of_requests(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done = trials(searched("original", Instant(30.0), monkeypatch, tmp_path, curve=3))
    assert {trial.meets for trial in done} == {True, False}
    for trial in done:
        kept = sum(count for *_, count in trial.requests.times_s)
        assert kept == (COUNT if trial.meets and not trial.of_curve else 0)
