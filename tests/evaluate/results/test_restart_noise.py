"""What starts of an engine differ by, on made data of which the truth is known."""

import math
import random
from typing import Any

import pytest

from evaluate.results.cells import Cell
from evaluate.results.restart_noise import (
    Noise,
    NoiseEstimate,
    cell_ratio,
    noise_estimate,
    noise_of,
    ran_on_two_machines,
)
from evaluate.results.row_types import Limit, Startup
from evaluate.results.significance import STATED_START, Sample, Start, compare
from tests.evaluate.made_rows import speed_row, without

LOADS = [f"load_{number}" for number in range(7)]
WITHOUT_TWINS = "load_7"
DRAWS = 1000


def drawn(chance: random.Random, kinds: int, starts: int, shared: float) -> dict[str, bool]:
    """Whether the margins cover what two further starts differ by. Loads differ in their noise,
    and a part of it is the same for all loads of a start."""
    loads = [*LOADS, WITHOUT_TWINS]
    widths = {load: 0.005 * math.exp(chance.gauss(0, 0.7)) for load in loads}

    def start() -> dict[str, float]:
        common = chance.gauss(0, 1)
        own = {load: chance.gauss(0, 1) for load in loads}
        return {
            load: width * (math.sqrt(shared) * common + math.sqrt(1 - shared) * own[load])
            for load, width in widths.items()
        }

    known = {kind: [start() for _ in range(starts)] for kind in map(str, range(kinds))}
    noise = noise_estimate(
        {load: {kind: [one[load] for one in known[kind]] for kind in known} for load in LOADS}
    )
    one, other = start(), start()
    return {load: abs(one[load] - other[load]) <= margin(noise, load) for load in loads}


def margin(spread: NoiseEstimate, load: str) -> float:
    """How far two starts of the same may lie apart, as logarithm."""
    side = Sample((Start((0.0, 0.0)),))
    ratio = compare(side, side, Noise(starts=spread).of(load))
    assert ratio is not None
    return math.log(ratio.high)


@pytest.mark.parametrize("shared", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("kinds", "starts"), [(1, 2), (2, 2), (2, 3)])
def test_margins_cover_what_they_say(kinds: int, starts: int, shared: float) -> None:
    chance = random.Random(3)
    found = [drawn(chance, kinds, starts, shared) for _ in range(DRAWS)]
    covered = sum(draw[load] for draw in found for load in LOADS) / (DRAWS * len(LOADS))
    assert covered > 0.95
    assert sum(draw[WITHOUT_TWINS] for draw in found) / DRAWS > 0.95


def test_a_restless_load_has_a_wide_margin_and_leaves_the_others_theirs() -> None:
    calm = {load: {"w8a8": [0.0, 0.004, -0.004]} for load in LOADS}
    restless = calm | {"load_0": {"w8a8": [0.0, 0.1, -0.02]}}
    assert margin(noise_estimate(restless), "load_0") > 0.1
    assert (
        margin(noise_estimate(restless), "load_1") == margin(noise_estimate(calm), "load_1") < 0.03
    )


def test_a_load_without_twins_has_what_is_usual_and_one_pair_alone_is_too_little() -> None:
    loads = {load: {"w8a8": [0.0, 0.01]} for load in LOADS}
    assert margin(noise_estimate(loads), "another") <= 1.96 * math.sqrt(2) * STATED_START * 1.001
    restless = loads | {"load_0": {"w8a8": [0.0, 0.1]}}
    assert margin(noise_estimate(restless), "another") > 1.5 * margin(
        noise_estimate(loads), "another"
    )
    stated = 1.96 * math.sqrt(2) * STATED_START
    one_pair = noise_estimate({"load_0": {"w8a8": [0.0, 0.01]}})
    assert margin(one_pair, "load_0") == pytest.approx(stated, rel=1e-3)
    assert margin(NoiseEstimate(), "load_0") == pytest.approx(stated, rel=1e-3)
    assert noise_estimate({"load_0": {"w8a8": [0.0], "fp8": [1.0]}}).members == 0


def cell(checkpoint: str, latencies: list[float], **facts: Any) -> Cell:
    """The same to the engine as any other, but for the facts that are given."""
    found = Cell("base", checkpoint)
    for repeat, latency in enumerate(latencies):
        given = {"checkpoint": checkpoint, "repeat": repeat} | facts
        given["environment"] = {"quantization_sha256": "w8a8"} | facts.get("environment", {})
        given["values"] = {"latency_s": latency, "ttft_last_s": latency**2}
        found.valid.append(speed_row(**given))
    return found


TWIN = [1.1, 1.1]


@pytest.mark.parametrize(
    "facts",
    [
        {"model": "other"},
        {"kernels": {"scheme": "Marlin"}},
        {"memory": {"weights_read_gib": 7.0}},
        *(
            {"environment": {name: value}}
            for name, value in {
                "device": "H200", "driver": "580", "power_limit_w": 300.0, "cpu": "Xeon",
                "cores": 64, "engine": "vllm", "versions": {"vllm": "0.25.1"}, "pruned": True,
                "quantization_sha256": "w4a16", "weights": "random", "made_up": 1,
                "engine_options": {"linear_backend": "marlin"}, "variables": {"VLLM_X": "1"},
            }.items()
        ),
    ],
    ids=str,
)  # fmt: skip
def test_what_differs_to_the_engine_is_no_twin(facts: dict[str, Any]) -> None:
    one = cell("gptq", [1.0, 1.0])
    assert noise_of([{"base": [one, cell("ptq", TWIN)]}]).starts.members == 2
    assert noise_of([{"base": [one, cell("ptq", TWIN, **facts)]}]).starts.members == 0


def test_twins_have_two_runs_and_a_known_format_and_stand_in_one_part() -> None:
    one, other = cell("gptq", [1.0, 1.0]), cell("ptq", TWIN)
    assert noise_of([{"base": [one]}, {"base": [other]}]).starts.members == 0
    assert noise_of([{"base": [one, cell("ptq", [1.1])]}]).starts.members == 0
    for member in (one, other):
        for row in member.valid:
            row.environment = without(row.environment, "quantization_sha256")
    assert noise_of([{"base": [one, other]}]).starts.members == 0


def test_kernels_may_be_logged_in_any_order_and_another_value_has_its_own_noise() -> None:
    one = cell("gptq", [1.0, 1.0], kernels={"a": "x", "b": "y"})
    other = cell("ptq", TWIN, kernels={"b": "y", "a": "x"})
    latency = noise_of([{"base": [one, other]}])
    assert latency.starts.usual == pytest.approx(math.log(1.1) / math.sqrt(2))
    ttft = noise_of([{"base": [one, other]}], "ttft_last_s")
    assert ttft.starts.usual == pytest.approx(2 * latency.starts.usual)


def on(bandwidth: float, **environment: Any) -> dict[str, Any]:
    limit = {"rates": "measured", "bandwidth_gb_s": bandwidth}
    return {"limit": limit, "environment": environment}


def test_twins_on_two_machines_widen_only_what_is_compared_across_them() -> None:
    calm = {"gptq": 1.0, "ptq": 1.001}
    here = [cell(name, [latency, latency], **on(4250.0)) for name, latency in calm.items()]
    there = cell("gptq", [1.05, 1.05], **on(4428.0))
    noise = noise_of([{"base": [*here, there]}])
    assert (noise.starts.members, noise.machines.members) == (2, 2)
    assert noise.starts.usual == pytest.approx(0.001 / math.sqrt(2), rel=0.01)
    assert noise.machines.usual == pytest.approx(0.048 / math.sqrt(2), rel=0.02)
    near, far = (cell_ratio(here[0], other, noise, "base") for other in (here[1], there))
    assert near is not None
    assert far is not None
    assert math.log(near.high / near.ratio) < math.log(far.high / far.ratio) / 3


def test_two_machines_say_nothing_of_the_starts_on_one() -> None:
    one, other = cell("gptq", [1.0, 1.0], **on(4250.0)), cell("ptq", TWIN, **on(4428.0))
    noise = noise_of([{"base": [one, other]}])
    assert noise.starts.members == 0
    near = cell_ratio(one, cell("fp8", [1.0, 1.0], **on(4250.0)), noise, "base")
    assert near is not None
    assert near.stated
    assert "2 machines" in str(noise)


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        ({}, {}, False),
        ({}, on(4250.0), False),
        (on(4428.0), on(4250.0), True),
        (on(4250.123456789), on(4250.123), False),  # rows keep seven digits
        (on(4250.0), on(8500.0, engine_options={"tensor_parallel_size": 2}), False),
        (on(4250.0, card="0a"), on(4250.0, card="0b"), True),
        (on(4250.0, card="0a"), on(4300.0, card="0a"), False),
        ({"limit": {"rates": "datasheet", "bandwidth_gb_s": 4800.0}}, on(4250.0), False),
    ],
)
def test_a_machine_is_known_by_its_card_or_by_what_was_measured_of_it(
    one: dict[str, Any], other: dict[str, Any], apart: bool
) -> None:
    assert ran_on_two_machines(cell("gptq", TWIN, **one), cell("ptq", TWIN, **other)) is apart


def test_what_ran_on_an_unknown_machine_ran_on_the_only_known_one() -> None:
    known, unknown = cell("gptq", [1.0, 1.0], **on(4250.0)), cell("ptq", TWIN)
    noise = noise_of([{"base": [known, unknown]}])
    assert (noise.starts.members, noise.machines.members) == (2, 0)


def again(one: Cell) -> Cell:
    """The cell, which has not been looked at since its rows changed."""
    return Cell(one.measure, one.checkpoint, one.valid, one.invalid, one.places)


def test_a_cell_that_was_measured_in_two_starts_is_its_own_twin() -> None:
    one = cell("fp8", [1.0, 1.001, 1.002, 1.03, 1.031, 1.032, 1.2])
    assert noise_of([{"base": [one]}]).starts.members == 0
    starts = (100.0,) * 3 + (47.5,) * 3 + (60.0,)  # the last one has too few runs
    for row, start in zip(one.valid, starts, strict=True):
        row.startup = Startup(start_s=start)
    noise = noise_of([{"base": [again(one)]}])
    assert (noise.starts.members, noise.starts.kinds) == (2, 1)
    assert noise.starts.usual == pytest.approx(0.03 / math.sqrt(2), rel=0.02)
    for row, bandwidth in zip(one.valid, (4250.0,) * 3 + (4428.0,) * 4, strict=True):
        row.limit = Limit(**on(bandwidth)["limit"])
    resumed = noise_of([{"base": [again(one)]}])
    assert (resumed.starts.members, resumed.machines.members) == (0, 2)


STEADY = [1.0, 1.001, 0.999]
RESTLESS = [0.8, 1.0, 1.2]


def verdict(*latencies: list[float]) -> tuple[bool, str]:
    """Whether the first two of these setups, started once each, differ; and what is said."""
    setups = [
        cell(f"setup {place}", each, environment={"quantization_sha256": str(place)})
        for place, each in enumerate(latencies)
    ]
    noise = noise_of([{"interactive": setups}])
    ratio = cell_ratio(setups[0], setups[1], noise, "interactive")
    assert ratio is not None
    return ratio.differs, str(noise)


def test_two_quiet_starts_among_restless_ones_decide_nothing() -> None:
    faster = [0.85 * latency for latency in STEADY]
    decided, said = verdict(STEADY, faster, STEADY, STEADY)
    assert decided
    assert "start noise of 1% (standard deviation) and" in said
    decided, said = verdict(STEADY, faster, RESTLESS, RESTLESS)
    assert not decided
    assert "standard deviation; up to 20% in interactive, where runs of one start differ" in said


def test_one_restless_setup_among_many_or_too_few_setups_leave_the_others_theirs() -> None:
    faster = [0.85 * latency for latency in STEADY]
    for others in ([RESTLESS], [STEADY, RESTLESS], [*[STEADY] * 4, RESTLESS], []):
        assert verdict(STEADY, faster, *others)[0]
