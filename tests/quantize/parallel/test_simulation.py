"""The simulation of several GPUs: its formulas, and the tables in docs/scaling.md."""

from pathlib import Path

import pytest

from quantize.estimate import H200, LayerShape
from quantize.parallel.simulation import tables
from quantize.parallel.simulation.tables import (
    LINK,
    Machine,
    calibration_table,
    job_seconds,
    layer_time,
    makespan,
    sweep_recipes,
    sweep_table,
)
from quantize.steps.base.step import steps_named

SCALING = (Path(__file__).parents[3] / "docs" / "scaling.md").read_text()
# A layer of one matrix [100, 1000] that sees 524,288 tokens.
SHAPE = LayerShape(layers=10, weights=1e5, squared_widths=1e6, solved=1e8, hidden=1000, widest=1000)


def time_on(gpus: int) -> tables.LayerTime:
    config = tables._config("tiny", "w4a16_gptq")
    return layer_time(config, steps_named(config.recipe.steps), SHAPE, Machine(gpus))


def test_a_layer_on_one_gpu_takes_what_preflight_estimates() -> None:
    tokens = 256 * 2048
    passes = 1.4 * (2 * 1e5 * tokens + 2 * tokens * 2048 * 1000) / H200.passes
    found = time_on(1)
    assert found.text == pytest.approx(passes + 1e6 * tokens / H200.products)
    assert found.rows + found.factoring == pytest.approx(1e8 / H200.solving)
    assert found.exchange == 0


def test_text_and_rows_are_split_and_factors_are_not() -> None:
    one, eight = time_on(1), time_on(8)
    assert eight.text == pytest.approx(one.text / 8)
    assert eight.rows == pytest.approx(one.rows / 8)
    assert eight.factoring == one.factoring
    assert eight.exchange == pytest.approx(7 * (2 * 1e6 + 4 * 1e5 / 8) / LINK)


def test_the_longest_jobs_go_first() -> None:
    assert makespan([1, 1, 1, 3], workers=2) == 3
    assert makespan([2, 2, 2], workers=2) == 4
    assert makespan([5, 1], workers=8) == 5


def test_the_original_is_not_calibrated() -> None:
    original = job_seconds(None, SHAPE, 8.19e9)
    assert original == pytest.approx(2 + 1470 / 8)
    rounded = job_seconds("fp8_dynamic", SHAPE, 8.19e9)
    assert rounded == pytest.approx(original + 156)
    assert job_seconds("w4a16_gptq", SHAPE, 8.19e9) > rounded
    assert job_seconds(None, SHAPE, 2 * 8.19e9) == pytest.approx(2 + 2 * 1470 / 8)


def test_the_documents_tables_are_those_of_the_simulation() -> None:
    assert len(sweep_recipes()) == 19
    computed = [
        *(line for line in calibration_table() if "w8a8" not in line),
        *(line for line in sweep_table() if "| 2 |" not in line and "| 4 |" not in line),
    ]
    missing = [line for line in computed if line not in SCALING]
    assert not missing
