"""Engines that stand loaded together: who goes with whom, and whose turn it is."""

import os
from contextlib import closing
from pathlib import Path

import pytest

from conf.schema.load import ScenarioConfig
from evaluate.measure.process import Worker
from evaluate.measure.side_by_side import cache_tokens, engine_options, groups, variables

WAITING = """import sys
from dataclasses import dataclass
from evaluate.measure.worker import work
@dataclass
class Job:
    name: str
def measure(job, send):
    send("loaded", {})
    sys.stdin.read()
    send("run", {"name": job.name})
work(Job, measure)
"""


@pytest.mark.parametrize(
    ("needs", "most", "room", "expected"),
    [
        ([1, 1, 1, 1, 1], 2, None, [[1, 1], [1, 1], [1]]),
        ([1, 1, 1], 3, None, [[1, 1, 1]]),
        ([30, 20, 60, 90, 10], 4, 100, [[30, 20], [60], [90, 10]]),
        ([300, 20], 2, 100, [[300], [20]]),
        ([1, 1], 1, None, [[1], [1]]),
        ([], 2, 100, []),
    ],
)
def test_as_many_together_as_are_allowed_and_fit(
    needs: list[float], most: int, room: float | None, expected: list[list[float]]
) -> None:
    assert groups(needs, most, float, room) == expected


def test_the_cache_holds_every_request_of_the_heaviest_load() -> None:
    small = ScenarioConfig(input_tokens=100, output_tokens=8, batch=1)
    batch = ScenarioConfig(input_tokens=100, output_tokens=8, batch=12)
    assert cache_tokens([small], 64, 1024) == (7 + 1) * 16
    assert cache_tokens([small, batch], 64, 1024) == (12 * 7 + 1) * 16
    assert cache_tokens([batch], 64, 4) == (4 * 7 + 1) * 16
    assert cache_tokens([], 4096, 1024) == (256 + 1) * 16
    lasting = ScenarioConfig(
        input_tokens=100, output_tokens=8, concurrency=3, requests=50, ttft_ms=1.0, tpot_ms=1.0
    )
    assert cache_tokens([lasting], 64, 1024) == (3 * 7 + 1) * 16


def test_what_was_asked_for_stands_above_what_neighbours_need() -> None:
    assert engine_options({}, 7)["kv_cache_memory_bytes"] == 7
    assert engine_options({"kv_cache_memory_bytes": 9}, 7)["kv_cache_memory_bytes"] == 9


def test_each_place_has_a_cache_of_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CACHE_ROOT", "/somewhere")
    assert variables(0) == {}
    assert variables(1) == {"VLLM_CACHE_ROOT": "/somewhere/beside-1"}
    monkeypatch.delenv("VLLM_CACHE_ROOT")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert variables(2) == {"VLLM_CACHE_ROOT": "/caches/vllm/beside-2"}


def test_a_loaded_worker_waits_for_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "waiting.py").write_text(WAITING)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    names = ("first", "second")
    started = [Worker("waiting", {"name": name}, tmp_path / name) for name in names]
    with closing(started[0]) as first, closing(started[1]) as second:
        for worker in started:
            worker.wait_until("loaded")
        assert [event.get("name") for event in first.measure()] == [None, "first"]
        assert second.process.poll() is None
        assert [event.get("name") for event in second.measure()] == [None, "second"]
    assert [worker.process.returncode for worker in started] == [0, 0]
