"""Trials of a capacity search, judged under other targets than those that it was made for."""

import random
from dataclasses import replace

import pytest

from conf.schema.report import TargetsConfig
from evaluate.report.decide.choose_capacity import NO_TRIAL, choose_capacity
from evaluate.report.decide.quality import qualities
from evaluate.report.decide.rules.facts import Limits, RateFacts, SearchFacts, TrialFacts
from evaluate.report.decide.rules.judge_trials import (
    judged_search,
    late,
    rates_between,
)
from evaluate.report.decide.rules.make_facts import setup_facts
from evaluate.report.show.what_if.data import MOST_REQUESTS, packed
from evaluate.results.late_requests import allowed_misses, slowest
from evaluate.results.rows import TrialRow
from tests.evaluate.report.made import ranked
from tests.evaluate.report.made_searches import PACED, paced, searched, table_of

CASES = 300
FAST, SLOW, LATE = (50.0, 5.0), (50.0, 25.0), (900.0, 5.0)


def trial(rate: float, *paces: tuple[float, float], whole: bool = True) -> TrialFacts:
    return TrialFacts(rate, 0, 0, whole, list(paces))


def test_random_trials_are_judged_as_by_all_requests() -> None:
    chance = random.Random(41)
    for _ in range(CASES):
        count, share = chance.randint(20, 80), chance.choice([0.8, 0.9, 0.95])
        allowed = allowed_misses(count, share)
        truth, trials = [], []
        ttft_ms, tpot_ms = float(chance.randint(20, 45)), float(chance.randint(20, 45))
        for rate in sorted(chance.uniform(1, 9) for _ in range(6)):
            every = [(chance.random() * 5 * rate, chance.random() * 5 * rate) for _ in range(count)]
            failed = chance.choice([0, 0, 1])
            misses = failed + sum(one > ttft_ms or two > tpot_ms for one, two in every[failed:])
            truth.append((rate, misses <= allowed))
            kept = slowest(every[failed:], allowed)
            trials.append(TrialFacts(rate, allowed, failed, True, kept))
        high = min((rate for rate, meets in truth if not meets), default=None)
        low = max((r for r, meets in truth if meets and (high is None or r < high)), default=0.0)
        assert rates_between(trials, ttft_ms, tpot_ms) == (low, high)


@pytest.mark.parametrize(
    ("ttft_ms", "tpot_ms", "between"),
    [
        (500.0, 20.0, (4.0, 5.0)),
        (500.0, 30.0, (5.0, 6.0)),  # the cut off trial at 6 misses the TTFT of 500 ms, too
        (1000.0, 30.0, (5.0, None)),  # what was cut off is not known to meet anything
        (40.0, 20.0, (0.0, 4.0)),
    ],
)
def test_a_trial_that_was_cut_off_can_only_miss(
    ttft_ms: float, tpot_ms: float, between: tuple[float, float | None]
) -> None:
    trials = [trial(4.0, FAST), trial(5.0, SLOW), trial(6.0, LATE, whole=False)]
    assert rates_between(trials, ttft_ms, tpot_ms) == between


def test_a_rate_that_met_the_targets_above_one_that_missed_them_did_so_by_chance() -> None:
    trials = [trial(4.0, FAST), trial(5.0, LATE), trial(5.0, FAST), trial(6.0, FAST)]
    assert rates_between(trials, 500.0, 20.0) == (4.0, 5.0)


def test_requests_that_failed_miss_any_targets() -> None:
    failed = replace(trial(4.0, FAST), failed=1)
    assert late(failed, 1e9, 1e9) == 1
    assert rates_between([failed], 1e9, 1e9) == (0.0, 4.0)


def test_a_difference_within_noise_is_none() -> None:
    held = [(0, trial(10.0, FAST), trial(10.3, LATE)), (1, trial(10.5, FAST), trial(12.0, LATE))]
    held += [(2, trial(11.0, FAST), trial(12.0, LATE))]
    rates = [
        RateFacts(place, 1.0, 1.0, 1.0, [], 1.0, 1.0, 0.5, 0.5, [*trials])
        for place, *trials in held
    ]
    search = SearchFacts("capacity", "", rates, ttft_ms=1000.0, tpot_ms=20.0, noise=1.04)
    judged = judged_search(search, Limits(ttft_ms=500.0))
    assert [found.candidate for found in judged.rates] == [2, 1, 0]
    assert [found.above for found in judged.rates] == [[0], [], []]
    assert {found.joules_output for found in judged.rates} == {None}
    assert judged_search(search, Limits(ttft_ms=1000.0)) is search
    unknown = replace(search, rates=[*rates[:2], replace(rates[2], trials=[])])
    assert judged_search(unknown, Limits(ttft_ms=500.0)) is unknown


def choice_words(rows: list[TrialRow], **targets: float) -> tuple[str | None, str, list[str]]:
    (group,) = ranked([*rows])
    table, judged = table_of(rows), qualities(rows)
    facts = setup_facts(group, judged, [table])
    choice = choose_capacity(table, 0, facts, TargetsConfig(**targets), judged)  # type: ignore[arg-type]
    return choice.candidate, choice.why, [r for one in choice.refused for r in one.reasons]


def test_the_choice_under_other_targets_is_made_from_the_trials() -> None:
    """TTFT grows by 100 ms with each request a second."""
    rows = [*paced(searched("original", 4, 4)), *paced(searched("w8a8", 8, 8))]
    own = choice_words(rows)
    assert own[0] == "w8a8"
    assert choice_words(rows, ttft_ms=500.0) == own
    candidate, why, refused = choice_words(rows, ttft_ms=PACED * 4.2)
    assert (candidate, refused) == ("original", [])
    assert why.startswith("holds 4 to ")
    assert "at TTFT 420 ms and TPOT 20 ms" in why
    assert choice_words(rows, ttft_ms=1.0)[2] == [NO_TRIAL] * 2
    faster = [*paced(searched("original", 4, 4)), *paced(searched("w8a8", 8, 8), PACED / 2)]
    assert choice_words(faster, ttft_ms=PACED * 4.2)[0] == "w8a8"


def test_looser_targets_have_no_upper_end() -> None:
    """Trials that missed were cut off, so what they would have met is not known."""
    rows = paced(searched("original", 4, 4))
    assert "holds at least 4 requests/s" in choice_words(rows, ttft_ms=1e6)[1]


def test_rows_of_earlier_searches_keep_their_targets() -> None:
    rows = searched("original", 4, 4)
    candidate, why, refused = choice_words(rows)
    kept = choice_words(rows, ttft_ms=1.0)
    assert kept[1].startswith(f"{why}; under its own targets (TTFT 500 ms, TPOT 20 ms)")
    assert (kept[0], kept[2]) == (candidate, refused)


def test_a_page_without_room_for_the_requests_leaves_them_out() -> None:
    rows = paced(searched("original", 4, 4))
    (group,) = ranked([*rows])
    facts = setup_facts(group, qualities(rows), [table_of(rows)])
    (rate,) = packed(facts)["searches"][0]["rates"]
    assert len(rate["trials"]) == len(rows)
    for found in facts.searches[0].rates[0].trials:
        found.slowest.extend([(1.0, 1.0)] * MOST_REQUESTS)
    (rate,) = packed(facts)["searches"][0]["rates"]
    assert rate["trials"] == []
