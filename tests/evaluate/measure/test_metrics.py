"""The arithmetic of timed requests, against timelines made by hand."""

import pytest

from conf.errors import QuantlineError
from conf.schema.load import ScenarioConfig
from evaluate.measure.metrics import Request, batch_values, serving_values

EARLY = Request(input_tokens=100, token_times=[1.0, 2.0, 3.0])
LATE = Request(input_tokens=300, token_times=[2.0, 2.5, 6.0])


def test_a_request_by_vllms_definitions() -> None:
    late_start = Request(input_tokens=5, token_times=[3.0, 4.0, 7.0], start=1.0)
    assert late_start.ttft == 2.0
    assert late_start.tpot == (7.0 - 3.0) / 2
    assert late_start.latency == 6.0
    assert late_start.gaps == [1.0, 3.0]


def test_a_batch_of_two() -> None:
    values = batch_values([EARLY, LATE])
    assert values.latency_s == 6.0
    assert values.ttft_first_s == 1.0
    assert values.ttft_last_s == 2.0
    assert values.tpot_median_s == pytest.approx((1.0 + 2.0) / 2)
    assert values.gap_median_s == pytest.approx(1.0)
    assert values.gap_p99_s == pytest.approx(1.0 + 2.5 * 0.97)
    assert values.input_tokens_per_s == 400 / 2
    assert values.output_tokens_per_s == 6 / (6 - 2)
    assert values.decode_tokens_per_s == 3 / (6 - 2)  # one of six came while LATE still waited
    assert values.overlap_share == 1 / 6
    assert values.generated_tokens_per_s == 6 / 6
    assert values.overall_tokens_per_s == 406 / 6
    assert values.requests_per_s == 2 / 6
    assert values.failed_requests == 0


def test_a_batch_handed_over_a_moment_after_the_clock_started() -> None:
    """The first token of the last one is no decoded one, however little it waited."""
    late = [Request(100, [2.0, 3.0, 4.0], start=1e-6) for _ in range(2)]
    values = batch_values(late)
    assert values.overlap_share == 0
    assert values.decode_tokens_per_s == pytest.approx(4 / 2)


def test_a_failed_request_is_counted_and_in_no_average() -> None:
    values = batch_values([EARLY, Request(0, [], error="HTTP 500")])
    assert values.failed_requests == 1
    assert values.output_tokens == 3
    assert values.requests_per_s == 1 / 3


def test_waves_of_requests_overlap() -> None:
    """A second wave waits for the first: a rate by phases would count the first one's answers."""
    waves = [
        Request(10, [start + 0.1 * step for step in range(1, 11)])
        for start in (0.0, 1.0)
        for _ in range(5)
    ]
    values = batch_values(waves)
    assert values.decode_tokens_per_s == pytest.approx(5 * 9 / 0.9)
    assert values.generated_tokens_per_s == pytest.approx(100 / 2.0)
    assert values.overlap_share == pytest.approx(0.45)


def test_a_run_without_any_answer_says_why() -> None:
    with pytest.raises(QuantlineError, match="all 2 requests failed: HTTP 400"):
        batch_values([Request(0, [], error="HTTP 400")] * 2)


def test_one_token_has_no_pace() -> None:
    values = batch_values([Request(input_tokens=5, token_times=[1.0])])
    assert values.tpot_median_s is None
    assert values.output_tokens_per_s == values.decode_tokens_per_s == 0.0


def test_answers_that_arrive_at_once_have_no_pace() -> None:
    at_once, streamed = Request(5, [1.0, 1.0, 1.0]), Request(5, [1.0, 2.0, 3.0])
    values = batch_values([at_once, at_once, streamed])
    assert (values.tpot_median_s, values.gap_p99_s) == (None, None)
    assert batch_values([at_once, streamed, streamed]).tpot_median_s == 1.0


def test_goodput_counts_requests_within_both_targets() -> None:
    scenario = ScenarioConfig(
        input_tokens=10, output_tokens=3, concurrency=2, requests=4, ttft_ms=1000, tpot_ms=500
    )
    requests = [
        Request(10, [1.0, 1.5, 2.0], start=0.0),  # good: 1.0 s and 0.5 s a token
        Request(10, [1.5, 1.6, 1.7], start=0.0),  # first token too late
        Request(10, [3.0, 4.0, 5.0], start=2.5),  # too slow after it
        Request(10, [], start=3.0, error="HTTP 503"),
    ]
    values = serving_values(requests, scenario)
    assert values.latency_s == 5.0
    assert values.goodput_requests_per_s == 1 / 5
    assert values.good_share == 1 / 4
    assert values.requests_per_s == 3 / 5
    assert values.ttft_median_s == 1.0
    assert values.request_latency_median_s == 2.0
    assert values.output_tokens_per_s == 9 / 5
    assert values.overall_tokens_per_s == 39 / 5
    assert values.failed_requests == 1


def test_the_steady_rate_leaves_out_the_beginning_and_the_end() -> None:
    scenario = ScenarioConfig(
        input_tokens=1, output_tokens=2, rate=1, requests=11, ttft_ms=1e4, tpot_ms=1e4
    )
    requests = [Request(1, [start + 0.5, start + 9.0], start=float(start)) for start in range(11)]
    values = serving_values(requests, scenario)
    # From 2 to 10 s: eight first tokens and, from 9 s on, two second ones.
    assert values.steady_tokens_per_s == pytest.approx(10 / 8)
    at_once = [Request(1, [1.0, 2.0]), Request(1, [1.0, 2.0])]
    assert serving_values(at_once, scenario).steady_tokens_per_s is None
