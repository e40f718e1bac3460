"""Targets that are met or missed only within the noise of the runs."""

from collections.abc import Callable

import pytest

from conf.schema.report import TargetsConfig
from evaluate.report.decide.recommend import Choice
from evaluate.report.show.choice_table import choice_table
from evaluate.results.rows import Row
from tests.evaluate.report.made import Cell, accuracy_row, runs
from tests.evaluate.report.test_recommend import chosen, mixed, timed

RESTLESS = runs(
    Cell("original", [2.0, 2.001, 1.999]),
    Cell("w8a8", [0.93, 1.0, 1.06]),
    Cell("w4a16", [1.05, 1.09, 1.16]),
    Cell("steady", [1.2, 1.201, 1.199]),
)


BOTH = [chosen, lambda rows, targets: mixed(rows, {}, targets)]
Answer = Callable[[list[Row], TargetsConfig], Choice]


@pytest.mark.parametrize("answer", BOTH)
def test_a_target_that_is_met_or_missed_within_the_noise_is_said(
    answer: Answer,
) -> None:
    choice = answer(RESTLESS, TargetsConfig(ttft_ms=102))
    assert choice.candidate == "w8a8"
    met, missed = [words for words in choice.changes if "within its noise" in words]
    it_meets = "more repeats or starts: it meets targets only within its noise, TTFT 100 ms in"
    assert met.startswith(f"{it_meets} interactive (8")
    assert met.endswith(" against 102 ms")
    it_misses = "more repeats or starts of w4a16: it misses targets only within its noise, TTFT"
    assert missed.startswith(f"{it_misses} 109 ms in interactive")
    for clear in (TargetsConfig(ttft_ms=500), TargetsConfig(), TargetsConfig(tpot_ms=500)):
        assert not any("noise" in words for words in answer(RESTLESS, clear).changes)
    none = answer(RESTLESS, TargetsConfig(ttft_ms=99))
    assert none.candidate is None
    assert [words.partition(":")[0] for words in none.changes] == [
        "more repeats or starts of w8a8",
        "more repeats or starts of w4a16",
    ]


@pytest.mark.parametrize("answer", BOTH)
def test_a_doubt_that_changes_nothing_is_not_said(answer: Answer) -> None:
    """A slower candidate, and any candidate without an original to compare it with."""
    rows = [*RESTLESS, *runs(timed("fast", 0.5))]
    choice = answer(rows, TargetsConfig(ttft_ms=102))
    assert choice.candidate == "fast"
    assert not any("noise" in words for words in choice.changes)
    alone = [row for row in RESTLESS if row.checkpoint != "original"]
    choice = answer(alone, TargetsConfig(ttft_ms=99))
    assert (choice.candidate, choice.changes) == (None, [])


@pytest.mark.parametrize("answer", BOTH)
def test_a_doubt_is_said_where_what_meets_the_targets_was_not_judged(answer: Answer) -> None:
    rows = runs(Cell("original", [1.05, 1.09, 1.16]), timed("w8a8", 0.8), timed("w4a16", 2.0))
    judged = accuracy_row("w4a16", 0.999, "no loss seen")
    choice = answer([*rows, judged], TargetsConfig(ttft_ms=102))
    assert choice.candidate is None
    assert [words.partition(":")[0] for words in choice.changes] == [
        "more repeats or starts of original"
    ]


def test_a_doubt_names_each_workload_of_a_mix_and_times_in_full() -> None:
    rows = runs(
        timed("original", 30.0),
        Cell("w8a8", [15.8, 16.0, 16.4]),
        timed("original", 30.0, "base"),
        Cell("w8a8", [15.8, 16.0, 16.4], "base"),
    )
    (doubt,) = [w for w in mixed(rows, {}, TargetsConfig(ttft_ms=1610)).changes if "noise" in w]
    assert "TTFT 1,600 ms in interactive (1,5" in doubt
    assert "1,600 ms in base" in doubt


def test_what_misses_another_target_too_is_not_said_to_meet_them_within_its_noise() -> None:
    judged = [accuracy_row("w8a8", 0.999, "no loss seen"), accuracy_row("w4a16", 0.9, "loss")]
    choice = chosen(RESTLESS + judged, TargetsConfig(ttft_ms=102))
    assert not any("starts of w4a16" in words for words in choice.changes)


def test_the_table_of_scenarios_tells_doubts_in_short() -> None:
    choices = [chosen(RESTLESS, TargetsConfig(ttft_ms=limit)) for limit in (102, 500)]
    titles, lines = choice_table(choices)
    assert titles[-1] == "would change it"
    assert [line[-1] for line in lines] == ["more repeats or starts, within the noise", "-"]
