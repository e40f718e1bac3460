"""Traffic runs with a prefix cache, and so do scenarios beside it: a candidate stays one."""

import shlex
from typing import Any

import pytest

from conf.compose import compose
from conf.schema.report import TargetsConfig
from evaluate.command import COMMAND as EVALUATE
from evaluate.report.decide.commands import missing_of, second_starts
from evaluate.report.decide.comparison import ComparisonGroup
from evaluate.report.decide.mix import choose_mix
from evaluate.report.decide.quality import qualities
from evaluate.report.decide.recommend import Choice
from evaluate.report.decide.rules.make_facts import setup_facts
from evaluate.results.row_types import TrafficSettings, WorkloadSettings
from evaluate.results.rows import SpeedRow
from tests.evaluate.report.made import Cell, ranked, runs

STEADY = [1.0, 1.001, 0.999]
CACHE = {"enable_prefix_caching": True}
MIX = {"interactive": 0.5, "traffic": 0.5}


def alone(checkpoint: str, seconds: float, **options: Any) -> list[SpeedRow]:
    """Runs of a scenario with unique prompts."""
    return runs(Cell(checkpoint, [seconds * t for t in STEADY], options=options))


def traffic(checkpoint: str, seconds: float, has_cache: bool = True, **more: Any) -> list[SpeedRow]:
    options = {"enable_prefix_caching": has_cache}
    rows = runs(Cell(checkpoint, [seconds * t for t in STEADY], "traffic", options=options))
    settings = WorkloadSettings(
        rate=4.0,
        requests=100,
        traffic=TrafficSettings(
            source="sharegpt", sha256="ab", arrivals="poisson", prefix_caching=has_cache, **more
        ),
    )
    for row in rows:
        row.settings = settings
        row.key = f"{row.key} {has_cache} {more}"
        row.values = row.values.model_copy(
            update={"request_latency_median_s": row.values.latency_s}
        )
    return rows


def answer(rows: list[SpeedRow]) -> tuple[ComparisonGroup, Choice]:
    (group,) = ranked(rows)
    return group, choose_mix(group, MIX, TargetsConfig(), qualities(rows))


def test_a_mix_of_traffic_and_what_ran_beside_it_has_an_answer() -> None:
    rows = [*alone("original", 1.0, **CACHE), *alone("fp8", 0.7, **CACHE)]
    group, choice = answer([*rows, *traffic("original", 2.0), *traffic("fp8", 1.4)])
    assert group.candidates == ["original", "fp8"]
    assert choice.candidate == "fp8"
    assert choice.ratio is not None
    assert choice.ratio.ratio == pytest.approx(1 / 0.7, rel=0.01)


@pytest.mark.parametrize("first", [True, False])
def test_what_was_measured_both_ways_keeps_its_name_without_the_cache(first: bool) -> None:
    """Scenarios that ran alone, then beside traffic, or the other way round; `w8a8` came later."""
    without = [*alone("original", 1.0), *alone("fp8", 0.7)]
    beside = [
        row
        for name, seconds in (("original", 1.01), ("fp8", 0.71), ("w8a8", 0.5))
        for row in alone(name, seconds, **CACHE)
    ]
    requests = [
        row
        for name, seconds in (("original", 2.0), ("fp8", 1.4), ("w8a8", 1.0))
        for row in traffic(name, seconds)
    ]
    rows = [*without, *beside] if first else [*beside, *without]
    group, choice = answer([*rows, *requests])
    with_cache = [f"{name} (enable_prefix_caching=True)" for name in ("original", "fp8")]
    assert sorted(group.candidates) == sorted(["original", "fp8", "w8a8", *with_cache])
    assert choice.candidate == "w8a8"
    assert {refusal.candidate for refusal in choice.refused} == set(with_cache)


def test_traffic_without_the_cache_is_another_load_of_the_same_candidate() -> None:
    rows = [*traffic("original", 2.0), *traffic("fp8", 1.4)]
    rows += [*traffic("original", 3.0, has_cache=False), *traffic("fp8", 2.0, has_cache=False)]
    rows += [*traffic("original", 3.0, pause_s=1.0)]
    group, _ = answer(rows)
    assert group.candidates == ["original", "fp8"]
    names = [workload.name for workload in group.workloads]
    assert len(set(names)) == 3
    assert "prefix_caching False" in names[1]
    assert "pause_s 1.0" in names[2]


def lacks(rows: list[SpeedRow], mix: dict[str, float] = MIX) -> list[tuple[str, str]]:
    (group,) = ranked(rows)
    facts = setup_facts(group, qualities(rows))
    missing = missing_of(group, facts, mix, "results.jsonl")
    return [(one.what, one.command) for one in missing if "accuracy" not in one.what]


def test_no_command_is_named_that_cannot_fill_its_gap() -> None:
    """What traffic measures counts for the plain name, not for the one with the prefix cache."""
    without = [*alone("original", 1.0), *alone("fp8", 0.7)]
    beside = [*alone("original", 1.01, **CACHE), *alone("fp8", 0.71, **CACHE)]
    rows = [*without, *beside, *traffic("original", 2.0)]
    ((what, command),) = lacks(rows)
    assert what == "fp8 in traffic"
    assert "scenario=[traffic]" in command
    assert lacks([*rows, *traffic("fp8", 1.4)]) == []


def test_a_noisy_run_with_the_cache_is_measured_again_with_it() -> None:
    noisy = runs(Cell("fp8", [0.7, 1.4, 0.7, 1.4], options=CACHE))
    rows = [*alone("original", 1.0, **CACHE), *noisy]
    ((what, command),) = lacks(rows, {})
    assert what == "fp8 in interactive"
    assert "engine.enable_prefix_caching=True" in command.replace("true", "True")
    assert "starts=2" in command


def test_a_second_start_has_the_cache_of_the_first() -> None:
    tie = [1.0, 1.001, 0.999, 1.002]
    for options in (CACHE, {}):
        cells = [Cell("original", tie, options=options)]
        cells.append(Cell("fp8_dynamic", [0.98 * t for t in tie], options=options))
        (group,) = ranked(runs(*cells))
        ((_, command),) = second_starts(group, "results.jsonl")
        words = shlex.split(command)
        config = compose(EVALUATE, words[3:])
        assert config.engine.options == options
        assert config.starts == 2
