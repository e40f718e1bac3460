"""What an evaluation returns: medians by checkpoint and scenario, and one number."""

import math

import pytest

from evaluate.measured import MeasuredMedian, measured_by
from evaluate.results.rows import Row
from tests.evaluate.made_rows import speed_row


def row(checkpoint: str, measure: str, repeat: int, latency: float, invalid: bool = False) -> Row:
    values = {"latency_s": latency, "request_latency_median_s": latency / 10}
    load = {"rate": 2.0} if measure == "arrivals" else {"batch": 1}
    return speed_row(
        checkpoint=checkpoint,
        measure=measure,
        repeat=repeat,
        key=f"{checkpoint} {measure}",
        values=values,
        settings=load,
        invalid=["throttled"] if invalid else [],
    )


def test_medians_of_the_runs_that_count() -> None:
    rows = [row("original", "base", n, latency) for n, latency in enumerate((1.0, 9.0, 2.0))]
    rows += [row("original", "base", 3, 50.0, invalid=True), row("w8", "arrivals", 0, 40.0)]
    measured = measured_by(rows)
    assert measured.medians == [
        MeasuredMedian("original", "base", "latency_s", 2.0),
        MeasuredMedian("w8", "arrivals", "request_latency_median_s", 4.0),
    ]
    assert float(measured) == pytest.approx(math.sqrt(8.0))


def test_nothing_timed_is_no_number() -> None:
    assert math.isnan(float(measured_by([])))
