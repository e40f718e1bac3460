"""What repeats say together, and when two cells differ."""

import math

import pytest

from evaluate.results.cells import cells
from evaluate.results.restart_noise import Noise, cell_ratio
from evaluate.results.rows import SpeedRow
from evaluate.results.summary import outliers, percentile, summarize
from tests.evaluate.made_rows import speed_row


def test_middle_deviation_and_interval() -> None:
    found = summarize([1.0, 2.0, 3.0])
    assert (found.median, found.mean, found.deviation) == (2.0, 2.0, 1.0)
    half = 4.303 / math.sqrt(3)
    assert (found.low, found.high) == pytest.approx((2 - half, 2 + half), rel=1e-3)
    assert found.spread == 0.5


def test_one_run_has_no_interval_to_speak_of() -> None:
    found = summarize([2.0])
    assert (found.low, found.high, found.deviation, found.runs) == (2.0, 2.0, 0.0, 1)


def test_an_outlier_is_marked_and_left_out() -> None:
    found = summarize([1.00, 1.01, 0.99, 1.02, 2.5])
    assert found.outliers == [4]
    assert found.runs == 4
    assert found.mean == pytest.approx(1.005)


@pytest.mark.parametrize(
    "values",
    [
        [1527.0, 4153.0, 3907.0],  # three runs cannot say which of them is strange
        [1.0, 1.001, 0.999, 1.0, 1.01],  # far in deviations, near in fact
        [1.0, 1.0, 2.0, 2.0, 3.0, 3.0],
    ],
)
def test_nothing_is_thrown_out_lightly(values: list[float]) -> None:
    assert outliers(values) == []


def test_runs_that_disagree_are_not_ranked() -> None:
    """An average of 1527, 4153 and 3907 once put a recipe last."""
    rows = [
        speed_row(repeat=n, values={"latency_s": 1e3 / value})
        for n, value in enumerate([1527.0, 4153.0, 3907.0])
    ]
    (cell,) = cells(rows)
    assert not cell.is_ranked(max_spread=0.1)
    assert cell.is_ranked(max_spread=1.0)


def test_an_open_loop_is_ranked_by_its_requests() -> None:
    """It lasts as long as requests keep coming, however fast they are answered."""
    rows = [
        speed_row(
            checkpoint=name,
            measure="rate_1",
            repeat=repeat,
            key=name,
            values={"latency_s": 30.0, "request_latency_median_s": seconds + 0.001 * repeat},
            settings={"rate": 1.0},
        )
        for name, seconds in (("original", 1.0), ("w8", 0.5))
        for repeat in range(3)
    ]
    found = cells(rows)
    ratio = cell_ratio(found[1], found[0], Noise(), "rate_1")
    assert ratio is not None
    assert ratio.ratio == pytest.approx(2.0, rel=0.01)


def test_an_invalid_run_is_in_no_figure() -> None:
    rows = [
        speed_row(values={"latency_s": 1.0}),
        speed_row(repeat=1, values={"latency_s": 9.0}, invalid=["shared"]),
    ]
    (cell,) = cells(rows)
    assert cell.values("latency_s") == [1.0]
    assert len(cell.invalid) == 1


def started(start: int, latencies: list[float]) -> list[SpeedRow]:
    return [
        speed_row(checkpoint="w8", repeat=n, values={"latency_s": latency}, start=start)
        for n, latency in enumerate(latencies)
    ]


def test_a_start_that_is_slower_as_a_whole_is_no_outlier() -> None:
    rows = [row for start in range(3) for row in started(start, [1.0 + 0.1 * (start == 2)] * 2)]
    (cell,) = cells(rows)
    assert [len(start) for start in cell.starts("latency_s")] == [2, 2, 2]
    summary = cell.summary("latency_s")
    assert summary is not None
    assert summary.outliers == []


def test_the_interval_of_several_starts_is_that_of_their_means() -> None:
    (cell,) = cells([row for n in range(3) for row in started(n, [1.0 + 0.1 * n] * 5)])
    summary = cell.summary("latency_s")
    assert summary is not None
    assert summary.high - summary.mean == pytest.approx(4.303 * 0.1 / math.sqrt(3), rel=1e-3)


def test_a_start_that_was_cut_short_is_left_out_beside_whole_ones() -> None:
    (cell,) = cells([*started(0, [1.0] * 5), *started(1, [1.1]), *started(2, [1.0] * 3)])
    assert [len(start) for start in cell.starts("latency_s")] == [5, 3]


@pytest.mark.parametrize(("share", "value"), [(0, 1.0), (0.5, 2.5), (1, 4.0), (0.99, 3.97)])
def test_percentiles_lie_between_neighbours(share: float, value: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], share) == pytest.approx(value)
