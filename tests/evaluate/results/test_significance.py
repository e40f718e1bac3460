"""Whether two setups differ: intervals by starts, stated bounds, and false verdicts."""

import math
import random

import pytest

from evaluate.results.significance import (
    STATED_DRIFT,
    STATED_MACHINE,
    STATED_START,
    Ratio,
    Sample,
    Start,
    VarianceEstimate,
    WorkloadNoise,
    compare,
    drift,
    pooled_variance,
    sample,
    variance,
)
from evaluate.results.student import adjusted, quantile
from evaluate.simulation import (
    WORKLOADS,
    Case,
    draw,
    false_mix_share,
    false_share,
    found_share,
    mix_verdicts,
    verdicts,
    verdicts_before,
)

scipy_stats = pytest.importorskip("scipy.stats")


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.96, 0.999, 0.99995])
@pytest.mark.parametrize("degrees", [1, 2, 3, 9, 30, 1000, math.inf])
def test_quantiles_are_scipys(level: float, degrees: float) -> None:
    expected = scipy_stats.t.ppf((1 + level) / 2, degrees)
    assert quantile(level, degrees) == pytest.approx(expected, rel=1e-6)


def test_between_whole_degrees_the_wider_quantile_counts() -> None:
    assert quantile(0.95, 2.9) == quantile(0.95, 2)
    assert quantile(0.95, 0.4) == quantile(0.95, 1)


def test_several_comparisons_hold_together() -> None:
    assert adjusted(0.95, 1) == 0.95
    assert adjusted(0.95, 36) ** 36 == pytest.approx(0.95)


def two(ones: list[list[float]], others: list[list[float]]) -> tuple[Sample, Sample]:
    """Two setups, each by the latencies of its starts."""
    sides = [Sample(tuple(sample(start).starts[0] for start in side)) for side in (ones, others)]
    return sides[0], sides[1]


def measured(*sides: Sample) -> WorkloadNoise:
    return WorkloadNoise(
        starts=pooled_variance([[start.mean for start in side.starts] for side in sides])
    )


def ratio(
    one: Sample, other: Sample, noise: WorkloadNoise | None = None, apart: bool = False
) -> Ratio:
    found = compare(one, other, noise, apart)
    assert found is not None
    return found


def test_starts_give_the_interval_of_students_test() -> None:
    """With two starts of each, it is the pooled t test of their means, as scipy has it."""
    one, other = two([[1.0, 1.02], [1.01, 1.01]], [[1.10, 1.12], [1.13, 1.11]])
    found = ratio(one, other, measured(one, other))
    means = [[start.mean for start in side.starts] for side in (other, one)]
    expected = scipy_stats.ttest_ind(*means).confidence_interval(0.96)
    assert math.log(found.low) == pytest.approx(expected.low, rel=1e-6)
    assert math.log(found.high) == pytest.approx(expected.high, rel=1e-6)
    assert not found.stated


def test_repeats_within_a_start_do_not_make_it_more_certain() -> None:
    few = two([[1.0, 1.01], [1.03, 1.02]], [[1.04, 1.05], [1.07, 1.06]])
    many = two(
        [[1.0, 1.01] * 20, [1.03, 1.02] * 20],
        [[1.04, 1.05] * 20, [1.07, 1.06] * 20],
    )
    halves = [math.log(found.high / found.ratio) for pair in (few, many)
              for found in [ratio(*pair, measured(*pair))]]  # fmt: skip
    assert halves[0] == pytest.approx(halves[1])


def test_one_start_allows_for_what_starts_differ_by() -> None:
    """Runs that agree to the last digit say nothing of the start they share."""
    found = ratio(*two([[1.0] * 5], [[1.02] * 5]))
    assert found.stated
    assert not found.differs
    assert math.log(found.high / found.ratio) == pytest.approx(
        1.96 * math.sqrt(2) * STATED_START, rel=1e-3
    )
    assert ratio(*two([[1.0] * 5], [[1.04] * 5])).differs


def test_a_tie_that_a_second_start_would_decide_is_marked() -> None:
    near = ratio(*two([[1.0, 1.001, 0.999]], [[1.025, 1.026, 1.024]]))
    assert not near.differs
    assert near.second_start_decides
    assert not ratio(*two([[1.0, 1.001, 0.999]], [[1.0, 1.001, 0.999]])).second_start_decides
    assert not ratio(*two([[1.0, 1.001]], [[2.0, 2.001]])).second_start_decides


def test_noise_of_other_workloads_stands_in_and_lifts_a_lucky_one() -> None:
    one, other = two([[1.0, 1.001]], [[1.02, 1.021]])
    assert not ratio(one, other).differs
    assert ratio(one, other, WorkloadNoise(usual=VarianceEstimate(0.001**2, 40))).differs
    pair = two([[1.0], [1.0]], [[1.01], [1.01]])
    lucky = measured(*pair)
    assert ratio(*pair, lucky).differs
    lifted = WorkloadNoise(starts=lucky.starts, usual=VarianceEstimate(0.01**2, 8))
    assert not ratio(*pair, lifted).differs


def test_one_pair_of_starts_is_too_little_to_go_by() -> None:
    one, other = two([[1.0, 1.001]], [[1.02, 1.021]])
    assert ratio(one, other, WorkloadNoise(starts=VarianceEstimate(1e-8, 1))).stated


def test_a_pair_that_is_noisier_than_the_others_is_judged_by_its_own_starts() -> None:
    one, other = two([[1.0], [1.2]], [[1.3], [1.5]])
    calm = WorkloadNoise(starts=VarianceEstimate((0.001**2 * 14 + 0.02 * 2) / 16, 16))
    own = measured(one, other)
    assert ratio(one, other, calm).low == pytest.approx(ratio(one, other, own).low)


def test_a_setup_of_one_start_is_never_taken_as_quieter_than_its_runs() -> None:
    one, other = two([[1.0, 1.3, 0.8]], [[1.2, 1.5, 1.0]])
    assert not ratio(one, other, WorkloadNoise(usual=VarianceEstimate(1e-8, 20))).differs


def test_two_machines_are_compared_with_what_machines_differ_by() -> None:
    one, other = two([[1.0, 1.0], [1.0, 1.0]], [[1.05, 1.05], [1.05, 1.05]])
    noise = WorkloadNoise(starts=VarianceEstimate(1e-8, 8))
    assert ratio(one, other, noise).differs
    stated = ratio(one, other, noise, apart=True)
    assert math.log(stated.high / stated.ratio) > 1.96 * math.sqrt(2) * STATED_MACHINE
    noise.machines = VarianceEstimate(0.001**2, 80)
    assert ratio(one, other, noise, apart=True).differs


def test_more_comparisons_take_wider_intervals() -> None:
    one, other = two([[1.0] * 3], [[1.035] * 3])
    assert ratio(one, other, WorkloadNoise(comparisons=1)).differs
    assert not ratio(one, other, WorkloadNoise(comparisons=36)).differs


def test_fewer_than_two_runs_tell_nothing() -> None:
    assert compare(*two([[1.0]], [[2.0, 2.1]])) is None
    one, other = two([[1.0], [1.001]], [[2.0], [2.001]])
    assert ratio(one, other, measured(one, other)).differs


def test_a_drift_is_allowed_for_by_the_runs_between() -> None:
    runs = (0.0, 0.0, 0.0)
    near = ratio(Sample((Start(runs, 1),)), Sample((Start((0.04,) * 3, 4),)))
    far = ratio(Sample((Start(runs, 1),)), Sample((Start((0.04,) * 3, 25),)))
    assert near.differs
    assert not far.differs


def test_runs_that_show_no_drift_allow_for_less() -> None:
    still = [Sample((Start((0.0, 0.0001, 0.0, -0.0001, 0.0)),)) for _ in range(9)]
    assert drift(still) < STATED_DRIFT / 10
    creeping = [Sample((Start(tuple(0.002 * n for n in range(5))),)) for _ in range(9)]
    assert drift(creeping) == pytest.approx(0.002)
    assert drift([sample([1.0, 1.1])]) == STATED_DRIFT


def test_variances_are_pooled_within_groups() -> None:
    groups = [[1.0, 2.0], [5.0, 7.0, 9.0], [3.0]]
    found = pooled_variance(groups)
    assert found is not None
    assert found.degrees == 3
    assert found.variance == pytest.approx((variance(groups[0]) + 2 * variance(groups[1])) / 3)
    assert pooled_variance([[1.0], [2.0]]) is None


DRAWS = 400
ALLOWED = 0.05 + 2.6 * math.sqrt(0.05 * 0.95 / DRAWS)  # 5 %, and what 400 draws may miss it by


@pytest.mark.parametrize("repeats", [2, 3, 5])
@pytest.mark.parametrize("starts", [1, 2, 3])
@pytest.mark.parametrize("kind", ["lognormal", "drift", "autocorrelated 0.5", "autocorrelated 0.8"])
def test_at_most_one_in_twenty_verdicts_is_false(kind: str, starts: int, repeats: int) -> None:
    case = Case(2, starts, repeats, kind, outliers=repeats == 5)
    assert false_share(case, DRAWS) <= ALLOWED


@pytest.mark.parametrize("kind", ["normal", "drift", "autocorrelated 0.8"])
@pytest.mark.parametrize("starts", [1, 2])
def test_nine_setups_at_once_are_no_reason_for_a_verdict(kind: str, starts: int) -> None:
    case = Case(9, starts, 3, kind)
    assert false_share(case, 100) <= 0.05 + 2.6 * math.sqrt(0.05 * 0.95 / 100)


def test_runs_taken_as_independent_are_wrong_far_more_often() -> None:
    """What the simulation is there to show; it would not, if it drew no noise between starts."""
    case = Case(9, 1, 5, "autocorrelated 0.8")
    assert false_share(case, 100, verdicts_before) > 0.5
    assert false_share(case, 100, verdicts) <= 0.12


@pytest.mark.parametrize(
    ("case", "least"),
    [
        (Case(2, 1, 3, run_noise=0.03, start_noise=0.0, faster=0.1), 0.80),
        (Case(2, 3, 5, start_noise=0.003, faster=0.03), 0.95),
        (Case(9, 3, 5, start_noise=0.003, faster=0.03), 0.95),
    ],
    ids=str,
)
def test_what_differs_is_found(case: Case, least: float) -> None:
    draws = 1000 if case.setups == 2 else 100
    assert found_share(case, draws) > least - 2.6 * math.sqrt(least * (1 - least) / draws)


@pytest.mark.parametrize("shares_starts", [True, False])
@pytest.mark.parametrize("starts", [1, 2])
def test_mixes_have_few_false_verdicts(starts: int, shares_starts: bool) -> None:
    assert false_mix_share(Case(2, starts, 3), 150, shares_starts) <= 0.05


def test_a_difference_over_a_mix_is_found() -> None:
    generator = random.Random(4)
    case = Case(2, 3, 3, start_noise=0.003, faster=0.05)
    found = [mix_verdicts([draw(generator, case) for _ in range(WORKLOADS)]) for _ in range(20)]
    assert sum(pairs == [(0, 1)] for pairs in found) >= 19
