"""The search on made-up times: true differences are found, noise is not, faults stop nothing."""

from dataclasses import replace

import pytest

from conf.errors import QuantlineError
from evaluate.tune.display import sentences
from evaluate.tune.search import Search, SearchOptions
from evaluate.tune.space import DEFAULT, Assignment
from evaluate.tune.trials import SEARCH, Budget, Trial, TrialRequest
from tests.evaluate.tune.made_up import SETTINGS, MadeUpEngines, faster, searched, space, whole

THROUGHPUT = (("performance_mode", "throughput"),)
SYNCHRONOUS = (("async_scheduling", "false"),)
FP8_CACHE = (("kv_cache_dtype", "fp8"),)


def test_a_true_difference_is_found_and_its_gain_is_that_of_fresh_starts() -> None:
    engines = MadeUpEngines(faster(performance_mode_throughput=1.08))
    outcome = searched(engines)
    assert dict(outcome.chosen)["performance_mode"] == "throughput"
    assert outcome.reason == ""
    assert outcome.gain is not None
    assert 1 < outcome.gain.low < 1.08 < outcome.gain.high < 1.2
    confirming = [request for request in engines.requests if request.number != SEARCH]
    assert [(request.assignment, request.number) for request in confirming] == [
        (DEFAULT, 1),
        (outcome.chosen, 1),
        (DEFAULT, 2),
        (outcome.chosen, 2),
    ]


def test_settings_that_add_up_are_combined() -> None:
    engines = MadeUpEngines(faster(performance_mode_interactivity=1.05, custom_ops_all=1.05))
    chosen = dict(searched(engines).chosen)
    assert (chosen["performance_mode"], chosen["custom_ops"]) == ("interactivity", "all")


def test_the_default_is_measured_first_and_nothing_twice() -> None:
    engines = MadeUpEngines()
    outcome = searched(engines)
    tried = [request.assignment for request in engines.requests if request.number == SEARCH]
    assert tried[0] == DEFAULT
    assert len(tried) == len(set(tried)) == space().size == len(outcome.trials)
    assert outcome.ended == "there is nothing new to try"


def test_noise_without_a_difference_gives_no_gain() -> None:
    noisy = [MadeUpEngines(seed=seed, start_noise=0.01) for seed in range(40)]
    outcomes = [searched(engines, space("performance_mode")) for engines in noisy]
    assert any(outcome.best != DEFAULT for outcome in outcomes), "some look faster by chance"
    gained = [outcome for outcome in outcomes if outcome.chosen != DEFAULT]
    assert len(gained) <= 3
    assert all(outcome.reason for outcome in outcomes if outcome.chosen == DEFAULT)


def test_a_lucky_start_of_the_search_is_no_gain() -> None:
    def lucky(request: TrialRequest) -> float:
        return 1.1 if request == TrialRequest(THROUGHPUT, SEARCH) else 1.0

    outcome = searched(MadeUpEngines(lucky))
    assert outcome.best == THROUGHPUT
    assert outcome.chosen == DEFAULT
    assert outcome.reason == "no settings are significantly faster than the default"
    assert outcome.gain is not None
    assert not outcome.gain.differs


LATE = "p99 TTFT 600 ms is over 500 ms"


def test_settings_that_miss_the_targets_lose_to_slower_ones_that_meet_them() -> None:
    engines = MadeUpEngines(
        faster(performance_mode_throughput=1.2, async_scheduling_false=1.1),
        missing=lambda request: LATE if dict(request.assignment).get("performance_mode") else "",
    )
    outcome = searched(engines)
    assert dict(outcome.chosen).get("async_scheduling") == "false"
    assert "performance_mode" not in dict(outcome.chosen)
    assert outcome.targets == ""


def test_settings_that_meet_the_targets_win_over_a_default_that_misses_them() -> None:
    """They need not be faster: the default is not good enough."""
    meets = SYNCHRONOUS[0]
    engines = MadeUpEngines(
        faster(async_scheduling_false=0.9, performance_mode_throughput=1.1),
        missing=lambda request: "" if meets in request.assignment else LATE,
    )
    outcome = searched(engines)
    assert meets in outcome.chosen
    assert outcome.reason == ""
    assert f"default settings miss the targets ({LATE})" in sentences(outcome)[-1]


def test_settings_that_miss_the_targets_in_fresh_starts_are_not_served() -> None:
    engines = MadeUpEngines(
        faster(performance_mode_throughput=1.2),
        missing=lambda request: LATE if request.assignment and request.number != SEARCH else "",
    )
    outcome = searched(engines)
    assert outcome.best != DEFAULT
    assert outcome.chosen == DEFAULT
    assert LATE in outcome.targets
    assert outcome.reason == "the default settings meet the targets"


def test_where_nothing_meets_the_targets_the_fastest_is_served() -> None:
    engines = MadeUpEngines(faster(performance_mode_throughput=1.2), missing=lambda _: LATE)
    outcome = searched(engines)
    assert dict(outcome.chosen)["performance_mode"] == "throughput"
    assert outcome.targets.count(LATE) == 2
    slower = searched(
        MadeUpEngines(lambda one: 0.5 if one.assignment else 1, missing=lambda _: LATE)
    )
    assert f"which miss the targets ({LATE})" in slower.reason


def test_settings_that_do_not_start_are_a_failed_trial_with_its_reason() -> None:
    def failing(assignment: Assignment) -> str:
        return "no such mode" if ("performance_mode", "interactivity") in assignment else ""

    outcome = searched(MadeUpEngines(faster(custom_ops_all=1.1), failing))
    failed = [trial for trial in outcome.trials if trial.failure]
    assert {trial.failure for trial in failed} == {"no such mode"}
    assert outcome.chosen == (("custom_ops", "all"),)


def test_default_settings_that_do_not_start_end_the_search() -> None:
    with pytest.raises(QuantlineError, match="the default settings failed: out of memory") as error:
        searched(MadeUpEngines(failing=lambda _: "out of memory"))
    assert "the same command goes on" in str(error.value)


def test_a_start_that_fails_while_confirming_leaves_the_default() -> None:
    engines = MadeUpEngines(faster(performance_mode_throughput=1.1))
    engines.failing = lambda _: "killed" if len(engines.requests) > space().size + 1 else ""
    outcome = searched(engines)
    assert outcome.chosen == DEFAULT
    assert "the gain was not confirmed" in outcome.reason
    assert "killed" in outcome.reason


def test_a_trial_that_is_beaten_ends_early() -> None:
    engines = MadeUpEngines(faster(async_scheduling_false=0.5))
    trials = {trial.assignment: trial for trial in searched(engines).trials}
    assert trials[SYNCHRONOUS].is_beaten
    assert trials[SYNCHRONOUS].runs == 2
    assert trials[DEFAULT].runs == 5


def test_trials_of_one_batch_race_each_other() -> None:
    engines = MadeUpEngines(faster(performance_mode_interactivity=0.5))
    first, second, *_ = searched(engines, side_by_side=4).trials
    assert (first.assignment, first.is_beaten) == (DEFAULT, False)
    assert (second.runs, second.is_beaten) == (2, True)


def test_finished_trials_are_taken_over() -> None:
    half = whole((("custom_ops", "all"),), 1.0, runs=3)
    beaten = whole(SYNCHRONOUS, 2.0, runs=2)
    failed = Trial((("performance_mode", "interactivity"),), failure="no", is_final=True)
    earlier = [half, beaten, whole(THROUGHPUT, 0.9), failed, whole()]
    engines = MadeUpEngines(faster(performance_mode_throughput=1.1), earlier=earlier)
    outcome = searched(engines)
    searching = [request.assignment for request in engines.requests if request.number == SEARCH]
    assert searching[0] == half.assignment, "an unfinished trial is continued first"
    assert not {one.assignment for one in earlier if one is not half} & set(searching)
    assert len(outcome.trials) == space().size
    assert dict(outcome.chosen)["performance_mode"] == "throughput"


def test_what_failed_in_an_earlier_command_is_tried_again() -> None:
    """Memory that another process held is free by now."""
    failed = Trial(THROUGHPUT, failure="out of memory")
    engines = MadeUpEngines(faster(performance_mode_throughput=1.1), earlier=[failed, whole()])
    outcome = searched(engines)
    assert engines.requests[0] == TrialRequest(THROUGHPUT, SEARCH)
    assert dict(outcome.chosen)["performance_mode"] == "throughput"


def test_default_settings_that_failed_earlier_are_tried_again() -> None:
    engines = MadeUpEngines(earlier=[Trial(DEFAULT, failure="out of memory", is_final=True)])
    outcome = searched(engines)
    assert engines.requests[0] == TrialRequest(DEFAULT, SEARCH)
    assert len(outcome.trials) == space().size


@pytest.mark.parametrize("runs", [0, 3])
@pytest.mark.parametrize("limit", ["trials", "budget"])
def test_the_default_is_measured_whatever_limit_is_reached(runs: int, limit: str) -> None:
    """An earlier command measured it in part, or left it out, and has as many others as wanted."""
    earlier = [whole(THROUGHPUT, 0.9), whole(SYNCHRONOUS, 0.95), *([whole(runs=runs)] * (runs > 0))]
    engines = MadeUpEngines(faster(performance_mode_throughput=1.1), earlier=earlier)
    limits = {"most_trials": 2} if limit == "trials" else {}
    outcome = searched(engines, seconds=-1.0 if limit == "budget" else 3600.0, **limits)
    searching = [request.assignment for request in engines.requests if request.number == SEARCH]
    assert searching == [DEFAULT]
    assert outcome.chosen == THROUGHPUT
    assert outcome.ended == ("trials=2 is reached" if limit == "trials" else "the budget is over")


def test_a_budget_that_is_over_before_the_search_still_measures_the_default() -> None:
    engines = MadeUpEngines()
    outcome = searched(engines, seconds=-1.0)
    assert [request.assignment for request in engines.requests] == [DEFAULT]
    assert outcome.reason == "only the default settings were measured: the budget is over"


def test_the_budget_begins_with_the_search() -> None:
    """Fetching a model may take longer than it."""
    engines = MadeUpEngines()
    search = Search(space(), engines, Budget(3600, lambda: engines.now), SearchOptions(5, 2))
    engines.now = 7200
    assert len(search.run().trials) == space().size


def test_a_continued_search_knows_how_long_its_starts_take() -> None:
    """A first trial, and the confirmation, would take 330 s."""
    earlier = [replace(whole(one, 1.0), took_s=60.0) for one in (DEFAULT, THROUGHPUT)]
    engines = MadeUpEngines(earlier=earlier)
    outcome = searched(engines, seconds=300.0)
    assert engines.requests == []
    assert outcome.ended == (
        "what is left of the budget (5.0 min) does not suffice for another trial and its "
        "confirmation (about 5.5 min)"
    )
    engines = MadeUpEngines(earlier=earlier)
    assert len(searched(engines, seconds=360.0).trials) > 2


def test_no_trial_begins_that_leaves_no_time_to_confirm() -> None:
    engines = MadeUpEngines(faster(performance_mode_interactivity=1.2))
    outcome = searched(engines, seconds=8 * 66.0)
    assert len(outcome.trials) == 3
    assert outcome.ended == (
        "what is left of the budget (5.6 min) does not suffice for another trial and its "
        "confirmation (about 6.0 min)"
    )
    assert outcome.chosen != DEFAULT
    assert engines.now <= 8 * 66.0


def test_the_confirmation_has_time_for_all_its_runs() -> None:
    """Racing stops most trials after two of five runs; starts that confirm have all of them."""
    interactivity = (("performance_mode", "interactivity"),)
    speeds = {DEFAULT: 1.0, interactivity: 1.2}
    engines = MadeUpEngines(lambda request: speeds.get(request.assignment, 0.5), run_s=60.0)
    budget = 60 * 60.0
    names = ("performance_mode", "async_scheduling", "custom_ops", "cudagraph_mode")
    outcome = searched(engines, space(*names), budget)
    assert outcome.chosen == interactivity
    assert sum(trial.is_beaten for trial in outcome.trials) > 2
    assert engines.now <= budget


def test_starts_that_failed_do_not_say_how_long_others_take() -> None:
    engines = MadeUpEngines(
        faster(performance_mode_throughput=1.2),
        lambda one: "no" if one and one != THROUGHPUT else "",
        run_s=60.0,
    )
    budget = 40 * 60.0
    searched(engines, seconds=budget)
    assert engines.now <= budget


def test_a_search_whose_trials_all_fail_ends_with_its_budget() -> None:
    engines = MadeUpEngines(failing=lambda one: "no" if one else "", earlier=[whole()])
    outcome = searched(engines, seconds=150.0)
    assert len(engines.requests) == 3
    assert outcome.ended == "the budget is over"


def test_a_budget_for_one_start_keeps_the_default_and_says_so() -> None:
    engines = MadeUpEngines()
    outcome = searched(engines, seconds=1.0)
    assert [request.assignment for request in engines.requests] == [DEFAULT]
    assert outcome.reason == "only the default settings were measured: the budget is over"


def test_a_budget_that_is_too_short_to_confirm_is_not_called_over() -> None:
    outcome = searched(MadeUpEngines(), seconds=400.0)
    expected = (
        "only the default settings were measured: what is left of the budget (5.6 min) does not "
        "suffice for another trial and its confirmation (about 6.0 min)"
    )
    assert outcome.reason == expected
    # The comment in serve.yaml has the same sentences.
    assert sentences(outcome) == [f"{expected}; the default settings are kept"]


def test_the_number_of_trials_has_a_limit() -> None:
    engines = MadeUpEngines()
    outcome = searched(engines, most_trials=3, side_by_side=2)
    assert len(outcome.trials) == 3
    assert engines.batches[:2] == [2, 1]


def test_engines_are_loaded_side_by_side() -> None:
    engines = MadeUpEngines(faster(performance_mode_throughput=1.1))
    outcome = searched(engines, side_by_side=4)
    assert engines.batches == [4, 4, 4, 4]
    assert dict(outcome.chosen)["performance_mode"] == "throughput"


@pytest.mark.parametrize("side_by_side", [1, 2, 3, 4, 8])
def test_what_helped_is_joined_once_all_single_changes_are_known(side_by_side: int) -> None:
    """In a batch, the last of them are still measured when a next trial is proposed."""
    names = (*SETTINGS[:3], "cudagraph_mode", "max_num_seqs", "fuse_norm_quant")
    engines = MadeUpEngines(
        faster(
            performance_mode_interactivity=1.1,
            custom_ops_all=1.1,
            cudagraph_mode_FULL_DECODE_ONLY=1.1,
            fuse_norm_quant_true=1.1,
            async_scheduling_false=0.9,
            max_num_seqs_64=0.9,
        )
    )
    outcome = searched(engines, space(*names), side_by_side=side_by_side, most_trials=8)
    tried = [trial.assignment for trial in outcome.trials]
    assert [len(assignment) for assignment in tried] == [0, 1, 1, 1, 1, 1, 1, 4]
    assert {name for name, _ in tried[-1]} == {*names} - {"async_scheduling", "max_num_seqs"}
    assert outcome.ended == "trials=8 is reached"


@pytest.mark.parametrize("is_good", [True, False])
def test_settings_that_change_answers_are_judged_before_they_are_confirmed(is_good: bool) -> None:
    engines = MadeUpEngines(
        faster(kv_cache_dtype_fp8=1.2, async_scheduling_false=1.1), is_good=is_good
    )
    outcome = searched(engines, space("async_scheduling", "kv_cache_dtype"))
    both = SYNCHRONOUS + FP8_CACHE
    assert engines.judged == ([both] if is_good else [both, FP8_CACHE])
    assert outcome.chosen == (both if is_good else SYNCHRONOUS)


def test_no_trial_is_beaten_by_settings_that_are_refused_later() -> None:
    """All trials after fp8 are slower than it. Of them, 32 is the best to serve."""
    seqs = (("max_num_seqs", "32"),)
    engines = MadeUpEngines(faster(kv_cache_dtype_fp8=1.5, max_num_seqs_32=1.1), is_good=False)
    outcome = searched(engines, space("max_num_seqs", "kv_cache_dtype"))
    tried = [trial.assignment for trial in outcome.trials]
    assert tried.index(FP8_CACHE) < tried.index(seqs)
    assert outcome.chosen == seqs


def test_a_whole_trial_that_is_slower_was_not_stopped() -> None:
    earlier = [whole(), whole(THROUGHPUT, 2.0), whole(SYNCHRONOUS, 2.0, runs=3)]
    outcome = searched(MadeUpEngines(earlier=earlier), most_trials=3)
    beaten = {trial.assignment: trial.is_beaten for trial in outcome.trials}
    assert beaten == {DEFAULT: False, THROUGHPUT: False, SYNCHRONOUS: True}
