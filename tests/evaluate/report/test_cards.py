"""Candidates that take different numbers of GPUs are weighed for each GPU."""

from dataclasses import replace

import pytest

from conf.schema.load import GpuConfig
from conf.schema.report import TargetsConfig
from evaluate.report.decide.cards import per_card, with_cards
from evaluate.report.decide.comparison import Workload
from evaluate.report.decide.mix import choose
from evaluate.report.decide.quality import qualities
from evaluate.report.decide.recommend import Choice, Refusal
from evaluate.report.decide.rules.make_facts import setup_facts
from evaluate.results.rows import Row
from tests.evaluate.report.made import Cell, ranked, runs

PRICES = GpuConfig(price_per_hour=3.6, currency="EUR")
STEADY = [1.0, 1.001, 0.999]


def timed(checkpoint: str, seconds: float, gpus: int = 1) -> list[Row]:
    options = {"tensor_parallel_size": gpus} if gpus > 1 else {}
    return runs(Cell(checkpoint, [seconds * time for time in STEADY], options=options))


def chosen(rows: list[Row]) -> tuple[Choice, Workload]:
    group, judged = ranked(rows)[0], qualities(rows)
    workload = group.workloads[0]
    return choose(workload, TargetsConfig(), judged, setup_facts(group, judged)), workload


def test_a_smaller_setup_that_brings_more_for_each_gpu_is_named_with_its_cost() -> None:
    choice, workload = chosen([*timed("original", 1.0), *timed("w8a8", 0.7, gpus=2)])
    assert choice.candidate is not None
    assert choice.candidate.startswith("w8a8")
    with_sentence = with_cards(choice, workload, PRICES)
    (sentence,) = [text for text in with_sentence.changes if "for each GPU" in text]
    assert sentence.startswith("original brings 1.40 times as much for each GPU: ")
    assert "on 1 GPU, " in sentence
    assert "EUR per million tokens, against " in sentence
    best, second = per_card(workload, PRICES)
    assert (best.gpus, second.gpus) == (1, 2)
    assert best.per_million == pytest.approx(3.6 / 3600 / best.tokens_per_s * 1e6)
    assert second.per_million == pytest.approx(2 * 3.6 / 3600 / second.tokens_per_s * 1e6)


def test_a_refused_candidate_is_no_alternative() -> None:
    choice, workload = chosen([*timed("original", 1.0), *timed("w8a8", 0.7, gpus=2)])
    refused = replace(choice, refused=[Refusal("original", ["it is too slow"])])
    assert with_cards(refused, workload, PRICES).changes == choice.changes


def test_two_gpus_that_bring_more_than_two_engines_are_confirmed() -> None:
    choice, workload = chosen([*timed("original", 1.0), *timed("w8a8", 0.4, gpus=2)])
    confirmed = with_cards(choice, workload, GpuConfig())
    assert confirmed.changes == choice.changes
    assert "no other one brings more for each GPU" in confirmed.why
    assert "per million" not in confirmed.why


def test_candidates_on_one_gpu_each_are_left_as_they_are() -> None:
    choice, workload = chosen([*timed("original", 1.0), *timed("w8a8", 0.7)])
    assert with_cards(choice, workload, PRICES) == choice
