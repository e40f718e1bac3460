"""What repeats say together, and when two cells differ."""

import math

import pytest

from evaluate.cells import against_original, cells
from evaluate.results import Row
from evaluate.summary import compare, outliers, student, summarize


def test_middle_deviation_and_interval() -> None:
    found = summarize([1.0, 2.0, 3.0])
    assert (found.median, found.mean, found.deviation) == (2.0, 2.0, 1.0)
    half = 4.303 / math.sqrt(3)
    assert (found.low, found.high) == pytest.approx((2 - half, 2 + half))
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
        Row("speed", "m", "sparse", "base", n, "k", values={"latency_s": 1e3 / value})
        for n, value in enumerate([1527.0, 4153.0, 3907.0])
    ]
    (cell,) = cells(rows)
    assert not cell.is_ranked(max_spread=0.1)
    assert cell.is_ranked(max_spread=1.0)


def test_an_open_loop_is_ranked_by_its_requests() -> None:
    """It lasts as long as requests keep coming, however fast they are answered."""
    rows = [
        Row(
            "speed", "m", name, "rate_1", repeat, name,
            values={"latency_s": 30.0, "request_latency_median_s": seconds + 0.001 * repeat},
            settings={"rate": 1.0},
        )
        for name, seconds in (("original", 1.0), ("w8", 0.5))
        for repeat in range(3)
    ]  # fmt: skip
    found = cells(rows)
    ratio = against_original(found[1], found)
    assert ratio is not None
    assert ratio.ratio == pytest.approx(2.0, rel=0.01)


def test_an_invalid_run_is_in_no_figure() -> None:
    rows = [
        Row("speed", "m", "original", "base", 0, "k", values={"latency_s": 1.0}),
        Row("speed", "m", "original", "base", 1, "k", {"latency_s": 9.0}, invalid=["shared"]),
    ]
    (cell,) = cells(rows)
    assert cell.values("latency_s") == [1.0]
    assert len(cell.invalid) == 1


def test_a_ratio_has_an_interval() -> None:
    faster = compare([1.0, 1.01, 0.99], [2.0, 2.02, 1.98])
    assert faster is not None
    assert faster.ratio == pytest.approx(2.0, rel=1e-3)
    assert faster.low < 2 < faster.high
    assert faster.differs


def test_noise_is_no_difference() -> None:
    same = compare([1.0, 1.2, 0.9], [1.1, 0.95, 1.15])
    assert same is not None
    assert not same.differs
    assert compare([1.0], [2.0, 2.1]) is None


def test_equal_runs_differ_by_their_ratio() -> None:
    found = compare([1.0, 1.0], [1.5, 1.5])
    assert found is not None
    assert (found.low, found.ratio, found.high) == pytest.approx((1.5, 1.5, 1.5))


def test_students_t_falls_to_the_normal() -> None:
    values = [student(degrees) for degrees in (1, 2, 2.9, 30, 31, 1000)]
    assert values == sorted(values, reverse=True)
    assert values[0] == 12.706
    assert values[-1] == pytest.approx(1.962, abs=1e-3)
