"""The search for the highest rate: what it tries, where it ends, and that it can be resumed."""

import math

import pytest

from evaluate.results.capacity_search import (
    MOST_TRIALS,
    Begin,
    Found,
    Trial,
    found,
    missing_curve,
    next_rate,
)

RESOLUTION = 0.05


FAR = Begin(1.0, is_near=False)


def search(limit: float, begin: Begin = FAR, trials: list[Trial] | None = None) -> list[Trial]:
    """All trials of a search in a server that holds `limit` requests a second."""
    trials = trials or []
    while (rate := next_rate(trials, RESOLUTION, begin)) is not None:
        trials.append(Trial(rate, rate <= limit))
    return trials


@pytest.mark.parametrize("limit", [0.03, 0.9, 1.0, 7.3, 500.0, 12345.0])
def test_it_doubles_then_halves_until_the_interval_is_narrow(limit: float) -> None:
    trials = search(limit)
    end = found(trials, RESOLUTION)
    assert end is not None
    assert end.low <= limit < end.high <= end.low * 1.051
    assert end.rate == pytest.approx(limit, rel=0.05)
    assert len(trials) <= 2 * abs(math.log2(limit)) + 8


def test_the_first_rates_double() -> None:
    assert [trial.rate for trial in search(7.3)][:4] == [1, 2, 4, 8]
    assert [trial.rate for trial in search(0.3)][:3] == [1, 0.5, 0.25]


def test_a_search_that_knows_where_to_begin_takes_few_trials() -> None:
    assert len(search(100, Begin(98.0, is_near=True))) <= 5
    assert len(search(100, Begin(104.0, is_near=True))) <= 5
    end = found(search(1000, Begin(10.0, is_near=True)), RESOLUTION)
    assert end is not None
    assert end.low <= 1000 < end.high


def test_an_interrupted_search_goes_on_where_it_was() -> None:
    whole = search(7.3)
    for count in range(len(whole)):
        assert search(7.3, trials=whole[:count]) == whole
        assert found(whole[:count], RESOLUTION) is None


@pytest.mark.parametrize("begin", [FAR, Begin(37.0, is_near=True)])
def test_targets_that_no_rate_meets_end_the_search(begin: Begin) -> None:
    trials = search(0.0, begin)
    assert found(trials, RESOLUTION) == Found(0.0, trials[-1].rate)
    assert len(trials) < MOST_TRIALS


def test_a_lucky_trial_above_a_bad_one_does_not_count() -> None:
    trials = [Trial(1, True), Trial(2, False), Trial(4, True)]
    assert next_rate(trials, RESOLUTION, FAR) == pytest.approx(math.sqrt(2))


def test_a_curve_follows_a_search_and_decides_nothing() -> None:
    trials = search(10.0)
    end = found(trials, RESOLUTION)
    assert end is not None
    assert missing_curve(trials[:-1], RESOLUTION, 4) == []  # it has not ended
    assert missing_curve(trials, RESOLUTION, 0) == []
    rates = missing_curve(trials, RESOLUTION, 4)
    assert rates == pytest.approx([end.rate * share for share in (0.125, 0.34375, 0.5625, 0.78125)])
    # Rows keep seven digits of a rate, and a trial of the curve may miss the targets by chance.
    trials.append(Trial(float(f"{rates[0]:.7g}"), meets=False, of_curve=True))
    assert missing_curve(trials, RESOLUTION, 4) == pytest.approx(rates[1:])
    assert found(trials, RESOLUTION) == end
    assert next_rate(trials, RESOLUTION, FAR) is None
    assert missing_curve(search(0.0), RESOLUTION, 4) == []
