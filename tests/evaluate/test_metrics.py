"""The arithmetic of a batch, against timelines made by hand."""

import math

import pytest

from evaluate.metrics import Request, batch_values, perplexity

EARLY = Request(input_tokens=100, output_tokens=11, first_token_s=1.0, last_token_s=3.0)
LATE = Request(input_tokens=300, output_tokens=11, first_token_s=2.0, last_token_s=6.0)


def test_a_batch_of_two() -> None:
    values = batch_values([EARLY, LATE], latency_s=6.0)
    assert values["ttft_first_s"] == 1.0
    assert values["ttft_last_s"] == 2.0
    assert values["tpot_median_s"] == pytest.approx((0.2 + 0.4) / 2)
    assert values["input_tokens_per_s"] == 400 / 2
    assert values["output_tokens_per_s"] == 22 / 4
    assert values["overall_tokens_per_s"] == 422 / 6


def test_one_token_has_no_gap() -> None:
    single = Request(input_tokens=5, output_tokens=1, first_token_s=1.0, last_token_s=1.0)
    assert batch_values([single], latency_s=1.0)["tpot_median_s"] == 0.0
    assert batch_values([single], latency_s=1.0)["output_tokens_per_s"] == 0.0


def test_perplexity_of_even_odds_is_their_number() -> None:
    assert perplexity([math.log(1 / 7)] * 5) == pytest.approx(7)
