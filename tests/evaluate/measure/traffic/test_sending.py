"""From the options to the times at which requests are sent, with engines that are stand-ins."""

import itertools
import json
import random
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conf.schema.load import ScenarioConfig
from conf.schema.traffic import TrafficLoad
from evaluate.measure.engines import vllm_steps
from evaluate.measure.engines.http_client import Server, send_load
from evaluate.measure.engines.vllm_steps import SteppedRun
from evaluate.measure.metrics import Request
from evaluate.measure.traffic.arrivals import arrival_times
from evaluate.measure.traffic.resolved import read_resolved
from evaluate.measure.traffic.resolving import read_traffic, with_traffic
from evaluate.measure.workload import Load, PlannedRequest, traffic_load
from evaluate.results.results_file import read
from evaluate.results.rows import SpeedRow
from tests.conftest import Run, evaluate_config
from tests.evaluate.measure.stand_in_server import StandIn, running
from tests.evaluate.measure.test_vllm_steps import SteppedEngine
from tests.evaluate.measure.traffic.files import lines

STEP_S = 0.001
SMALL = (
    *("traffic.input.median=8", "traffic.input.high=16"),
    *("traffic.output.distribution=fixed", "traffic.output.median=3"),
)


@dataclass
class Clock:
    """Time that passes only where somebody waits."""

    now: float = 100.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 1e-6)  # less is lost in rounding


@dataclass
class TimedEngine(SteppedEngine):
    """A step takes a millisecond. Records when requests come in."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock, self.times = clock, dict[tuple[int, ...], float]()

    def add(self, planned: PlannedRequest) -> str:
        self.times[tuple(planned.prompt)] = self.clock.now - 100.0
        return super().add(planned)

    def step(self) -> list[Any]:
        self.clock.now += STEP_S
        return super().step()


def planned(folder: Path, *overrides: str, repeat: int = 0) -> Load:
    """What the options make the evaluation send."""
    (folder / "config.json").write_text('{"max_position_embeddings": 400, "vocab_size": 9999}')
    config = evaluate_config("model=tiny", "scenario=traffic", *overrides)
    config = with_traffic(config, read_traffic(config.traffic), folder)
    scenario = config.scenario["traffic"]
    assert scenario.traffic is not None
    return traffic_load(scenario, read_resolved(scenario.traffic.sha256), "traffic", repeat, 9999)


def sent(load: Load, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Request], list[float]]:
    """The requests, and when each of them came into the engine."""
    clock = Clock()
    engine = TimedEngine(clock)
    monkeypatch.setattr(vllm_steps, "time", clock)
    requests = SteppedRun(engine, load, engine.add, None).run()
    assert all(request.is_answered for request in requests)
    return requests, [engine.times[tuple(request.prompt)] for request in load.requests]


def trace(folder: Path, *moments: float) -> str:
    records = [
        {"timestamp": moment, "input_tokens": 5 + n, "output_tokens": 2}
        for n, moment in enumerate(moments)
    ]
    return f"traffic.path={lines(folder / 'trace.jsonl', *records)}"


def test_a_trace_is_sent_at_its_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = trace(tmp_path, 7000, 7250, 7250, 9000)
    options = (path, "traffic.arrivals=replayed", "traffic.time_unit=ms", "traffic.speed=2")
    requests, times = sent(planned(tmp_path, *options), monkeypatch)
    assert [request.start for request in requests] == pytest.approx([0, 0.125, 0.125, 1.0])
    assert times == pytest.approx([0, 0.125, 0.125, 1.0], abs=STEP_S)
    assert [request.input_tokens for request in requests] == [5, 6, 7, 8]
    again = planned(tmp_path, *options, repeat=1)
    assert [request.arrival_s for request in again.requests] == [r.start for r in requests]


@pytest.mark.parametrize(
    ("options", "variation"),
    [(("traffic.arrivals=bursty", "traffic.burstiness=0.25"), 2.0), ((), 1.0)],
)
def test_requests_come_in_bursts_at_the_mean_rate(
    options: tuple[str, ...], variation: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = (*options, "traffic.rate=50", "traffic.requests=3000", *SMALL)
    load = planned(tmp_path, *options)
    requests, times = sent(load, monkeypatch)
    starts = [request.start for request in requests]
    assert starts == [request.arrival_s for request in load.requests] == sorted(starts)
    assert max(abs(time - start) for time, start in zip(times, starts, strict=True)) <= STEP_S
    gaps = [after - before for before, after in itertools.pairwise(starts)]
    assert statistics.mean(gaps) == pytest.approx(1 / 50, rel=0.1)
    assert statistics.stdev(gaps) * 50 == pytest.approx(variation, rel=0.15)
    other = planned(tmp_path, *options, repeat=1)
    assert [request.arrival_s for request in other.requests] != starts


def test_turns_come_a_pause_after_their_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = ("traffic.turns=3", "traffic.pause_s=0.5", "traffic.requests=30", "traffic.rate=10")
    for arrivals in ("bursty", "poisson", "closed"):
        clients = () if arrivals != "closed" else ("traffic.concurrency=2",)
        rate = turns if arrivals != "closed" else turns[:-1]
        load = planned(tmp_path, *rate, *SMALL, f"traffic.arrivals={arrivals}", *clients)
        requests, times = sent(load, monkeypatch)
        for place, request in enumerate(load.requests):
            if request.after is not None:
                answered = requests[request.after].token_times[-1]
                assert times[place] == pytest.approx(answered + 0.5, abs=2 * STEP_S)
        busy = [
            sum(
                times[places[0]] <= moment < requests[places[-1]].token_times[-1]
                for places in load.conversations
            )
            for moment in times
        ]
        assert arrivals != "closed" or max(busy) <= 2


def test_requests_are_sent_at_these_times_over_http(tmp_path: Path) -> None:
    path = trace(tmp_path, 0, 3, 4)
    load = planned(tmp_path, path, "traffic.arrivals=replayed", "traffic.speed=100")
    with running(StandIn()) as stand_in:
        requests = send_load(Server(stand_in.url, "m", {}), load)
    assert [request.start for request in requests] == pytest.approx([0, 0.03, 0.04])
    assert all(request.token_times[0] >= request.start for request in requests)
    assert sorted(len(body["prompt"]) for body in stand_in.bodies) == [5, 6, 7]


@pytest.mark.usefixtures("programs_here", "tiny")
@pytest.mark.parametrize("arrivals", ["replayed", "bursty"])
def test_a_row_has_the_times_of_the_options(
    arrivals: str, command_here: Run, tmp_path: Path
) -> None:
    moments = [0.0, 3.0, 4.0, 9.0]
    options = {
        "replayed": ("traffic.speed=100",),
        "bursty": ("traffic.rate=80", "traffic.burstiness=0.5"),
    }
    with running(StandIn(pace_s=0.002)) as stand_in:
        result = command_here(
            "evaluate", "model=tiny", "scenario=traffic", trace(tmp_path, *moments), "repeats=1",
            "engine=vllm_server", f"engine.url={stand_in.url}", f"traffic.arrivals={arrivals}",
            *options[arrivals],
        )  # fmt: skip
    assert result.returncode == 0, result.stderr
    (row,) = [row for row in read(tmp_path / "results.jsonl")[0] if isinstance(row, SpeedRow)]
    expected = [moment / 100 for moment in moments]
    if arrivals == "bursty":
        load = TrafficLoad(arrivals=arrivals, burstiness=0.5)
        scenario = ScenarioConfig(from_traffic=True, traffic=load, rate=80.0)
        generator = random.Random("traffic 0 arrivals")  # of the first repeat
        expected = arrival_times(4, scenario, [], generator)
    assert [times[0] for times in row.requests.times_s] == pytest.approx(expected, abs=1e-6)
    assert row.settings.traffic is not None
    assert row.settings.traffic.arrivals == arrivals
    assert json.dumps(row.requests.input_tokens) == '{"5": 1, "6": 1, "7": 1, "8": 1}'
