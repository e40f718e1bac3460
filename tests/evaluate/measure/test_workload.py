"""What is sent, when, and how long an engine is warmed up."""

from dataclasses import replace

import pytest

from conf.schema.load import ScenarioConfig
from evaluate.measure.workload import prompts, schedule, warm_up

BATCH = ScenarioConfig(input_tokens=16, output_tokens=2048, batch=8)
CLIENTS = ScenarioConfig(
    input_tokens=16, output_tokens=64, concurrency=64, requests=8000, ttft_ms=1, tpot_ms=1
)
ARRIVALS = replace(CLIENTS, concurrency=None, rate=50)


def test_every_run_has_tokens_of_its_own_and_the_same_ones_again() -> None:
    first, second = (prompts(BATCH, "ours", repeat, 1000) for repeat in (0, 1))
    assert first == prompts(BATCH, "ours", 0, 1000)
    assert not {tuple(prompt) for prompt in first} & {tuple(prompt) for prompt in second}
    assert {len(prompt) for prompt in first} == {16}


def test_a_warm_up_is_no_longer_than_it_must_be() -> None:
    assert warm_up(BATCH) == replace(BATCH, output_tokens=128)
    assert warm_up(CLIENTS) == replace(CLIENTS, requests=256)
    assert warm_up(ARRIVALS) == replace(ARRIVALS, requests=64)
    few = replace(CLIENTS, requests=3)
    assert warm_up(few) == few


def test_clients_come_at_once_and_arrivals_at_random_times() -> None:
    sent = prompts(CLIENTS, "ours", 0, 1000)
    assert schedule(sent, CLIENTS) == ([0.0] * 8000, 64)
    times, at_once = schedule(sent, ARRIVALS)
    assert at_once == 8000
    assert times[0] == 0
    assert times == sorted(times)
    assert times[-1] == pytest.approx(8000 / 50, rel=0.05)
    assert schedule(sent, ARRIVALS) == (times, 8000)
    assert schedule(prompts(CLIENTS, "ours", 1, 1000), ARRIVALS)[0] != times
