"""What is recommended, on made data: targets, mixes, ties, and what would change the answer."""

from pathlib import Path

import pytest

from conf.errors import QuantlineError
from conf.schema.report import ReportConfig, TargetsConfig
from evaluate.report.contents import make_report
from evaluate.report.decide.comparison import comparison_groups
from evaluate.report.decide.memory import need_gib
from evaluate.report.decide.mix import choose, choose_mix
from evaluate.report.decide.quality import qualities
from evaluate.report.decide.recommend import Choice
from evaluate.report.decide.rules.make_facts import setup_facts
from evaluate.results.row_types import Memory
from evaluate.results.rows import Row
from tests.evaluate.made_rows import without
from tests.evaluate.report.made import Cell, accuracy_row, ranked, runs, write

STEADY = [1.0, 1.001, 0.999]


def timed(checkpoint: str, seconds: float, measure: str = "interactive") -> Cell:
    return Cell(checkpoint, [seconds * t for t in STEADY], measure)


def chosen(rows: list[Row], targets: TargetsConfig | None = None) -> Choice:
    group, judged = ranked(rows)[0], qualities(rows)
    facts = setup_facts(group, judged)
    return choose(group.workloads[0], targets or TargetsConfig(), judged, facts)


def mixed(rows: list[Row], mix: dict[str, float], targets: TargetsConfig | None = None) -> Choice:
    found = ranked(rows)
    return choose_mix(found[0], mix, targets or TargetsConfig(), qualities(rows))


THREE = runs(timed("original", 1.0), timed("w8a8", 0.8), timed("w4a16", 0.6))
JUDGED = [accuracy_row("w8a8", 0.999, "no loss seen"), accuracy_row("w4a16", 0.97, "loss")]


def test_the_fastest_is_recommended_with_its_reason_and_the_next() -> None:
    choice = chosen(THREE)
    assert (choice.candidate, choice.second) == ("w4a16", "w8a8")
    assert choice.why.startswith("1.67 times as fast as the original")
    assert "accuracy was not measured" in choice.why
    assert any("accuracy=quick" in words for words in choice.changes)


def test_an_original_that_is_level_with_another_one_has_no_speed_up() -> None:
    restless = Cell("original", [1.0, 1.03, 0.97])
    other = Cell("original", [0.99, 1.02, 0.96], options={"max_num_seqs": 1024})
    choice = chosen(runs(restless, other))
    assert (choice.candidate, choice.ratio) == ("original", None)
    assert choice.tied == ["original (max_num_seqs=1024)"]


def test_a_loss_is_not_recommended_and_would_change_the_answer() -> None:
    choice = chosen(THREE + JUDGED)
    assert choice.candidate == "w8a8"
    assert choice.changes == ["w4a16 is 1.33 times as fast as this, but it was judged a loss"]


def test_what_another_one_beats_is_not_served_for_being_level_with_a_restless_fastest() -> None:
    restless = Cell("restless", [0.9, 0.97, 1.04])
    slow = Cell("a_slow_one", [1.12, 1.121, 1.12])
    rows = runs(Cell("original", [2.0, 2.0, 2.01]), restless, timed("fast", 1.0), slow)
    for choice in (chosen(rows), mixed(rows, {})):
        assert choice.candidate == "fast"
        assert (choice.tied, choice.second) == (["restless"], "a_slow_one")


def test_the_teams_own_share_of_quality_decides() -> None:
    assert chosen(THREE + JUDGED, TargetsConfig(min_recovery=0.95)).candidate == "w4a16"
    assert chosen(THREE + JUDGED, TargetsConfig(min_recovery=0.9995)).candidate == "original"


def test_what_was_not_judged_does_not_meet_a_share_of_quality() -> None:
    choice = chosen(THREE, TargetsConfig(min_recovery=0.9))
    assert choice.candidate == "original"
    assert "its accuracy was not measured" in choice.changes[0]


@pytest.mark.parametrize(
    ("targets", "reason"),
    [
        (TargetsConfig(ttft_ms=70), "TTFT 100 ms in interactive is over 70 ms"),
        (TargetsConfig(tpot_ms=12), "TPOT 14.3 ms in interactive is over 12 ms"),
        (TargetsConfig(max_memory_gib=10), "it needs 15.2 GiB, over 10 GiB"),
    ],
)
def test_a_missed_target_is_named(targets: TargetsConfig, reason: str) -> None:
    choice = chosen(THREE, targets)
    refused = {refusal.candidate: refusal.reasons for refusal in choice.refused}
    assert refused["original"] == [reason]


def test_no_candidate_meets_the_targets() -> None:
    choice = chosen(THREE, TargetsConfig(tpot_ms=0.1))
    assert choice.candidate is None
    assert choice.why == "no candidate meets the targets"


def test_the_original_stays_where_nothing_is_faster_beyond_noise() -> None:
    rows = runs(Cell("original", [1.0, 1.02, 0.98]), Cell("w8a16", [0.99, 1.01, 0.97]))
    choice = chosen(rows)
    assert choice.candidate == "original"
    assert choice.tied == ["w8a16"]


def test_the_original_is_served_for_reasons_that_hold() -> None:
    """Targets are named only where they are given, and candidates without a rank always."""
    slower = runs(timed("original", 1.0), timed("w8a8", 1.2))
    refused = runs(timed("original", 1.0), timed("w4a16", 0.6)) + JUDGED[1:]
    restless = runs(Cell("fp8", [0.3, 0.6, 0.9]))
    for answer, place in ((chosen, ""), (lambda *of: mixed(of[0], {}, *of[1:]), " in interactive")):
        assert answer(slower).why == "no candidate is faster"
        limited = answer(slower, TargetsConfig(tpot_ms=100))
        assert limited.why == "no candidate that meets the targets is faster"
        assert answer(refused).why == "no candidate that may be served is faster"
        left_out = f"left out: fp8 (cannot be ranked{place})"
        assert answer(slower + restless).why == f"no ranked candidate is faster; {left_out}"


def test_among_equals_the_one_that_keeps_more_is_served() -> None:
    rows = runs(timed("original", 1.0), timed("a", 0.8), timed("b", 0.8))
    rows += [accuracy_row("a", 0.9, "small loss"), accuracy_row("b", 0.999, "no loss seen")]
    choice = chosen(rows)
    assert (choice.candidate, choice.tied) == ("b", ["a"])


TWO_LOADS = runs(
    timed("original", 1.0, "interactive"), timed("original", 1.0, "high_concurrency"),
    timed("w4a16", 0.5, "interactive"), timed("w4a16", 1.25, "high_concurrency"),
    timed("w8a8", 0.8, "interactive"), timed("w8a8", 0.8, "high_concurrency"),
)  # fmt: skip


def test_a_mix_weighs_the_time_that_is_left() -> None:
    choice = mixed(TWO_LOADS, {"interactive": 0.9, "high_concurrency": 0.1})
    assert choice.candidate == "w4a16"
    assert choice.ratio is not None
    assert choice.ratio.ratio == pytest.approx(1 / (0.9 * 0.5 + 0.1 * 1.25), rel=0.01)
    assert mixed(TWO_LOADS, {"interactive": 0.2, "high_concurrency": 0.8}).candidate == "w8a8"


def test_the_answer_of_a_mix_says_which_load_another_serves_faster() -> None:
    choice = mixed(TWO_LOADS, {})
    assert choice.candidate == "w8a8"
    assert "alone, interactive would be served faster by w4a16" in choice.changes


def test_the_winner_of_a_load_is_the_answer_for_it_alone() -> None:
    """Of two that are level, the one that keeps more is served, though the other looks faster."""
    rows = TWO_LOADS + runs(
        timed("w4a8", 0.502, "interactive"), timed("w4a8", 1.25, "high_concurrency")
    )
    judged = [
        accuracy_row("w8a8", 0.999, "no loss seen"),
        accuracy_row("w4a16", 0.95, "small loss"),
        accuracy_row("w4a8", 0.99, "no loss seen"),
    ]
    alone = chosen([*rows, *judged])
    assert (alone.workload, alone.candidate) == ("interactive", "w4a8")
    choice = mixed([*rows, *judged], {})
    assert choice.candidate == "w8a8"
    assert "alone, interactive would be served faster by w4a8" in choice.changes


def test_a_candidate_that_misses_a_load_of_the_mix_is_left_out() -> None:
    rows = TWO_LOADS + runs(timed("fp8", 0.1, "interactive"))
    choice = mixed(rows, {})
    assert {r.candidate: r.reasons for r in choice.refused}["fp8"] == [
        "not measured in high_concurrency"
    ]


def test_a_mix_of_something_unknown_is_bad_input(tmp_path: Path) -> None:
    config = ReportConfig(results=[str(write(tmp_path / "r", TWO_LOADS))], mix={"interactiv": 1.0})
    with pytest.raises(QuantlineError, match="Did you mean interactive"):
        make_report(config)


def test_a_setup_without_a_load_of_the_mix_spoils_no_other(tmp_path: Path) -> None:
    other = Cell("original", [1.0, 1.0, 1.01], "prefill_bound", device="NVIDIA A100")
    results = write(tmp_path / "r", TWO_LOADS + runs(other))
    report = make_report(ReportConfig(results=[str(results)], mix={"interactive": 1.0}))
    assert [answer.overall.candidate for answer in report.answers] == ["w4a16", None]
    assert report.answers[1].overall.why == "interactive was not measured here"


def test_a_mix_measures_all_against_one_original() -> None:
    eager = {"enforce_eager": True}
    rows = runs(
        timed("original", 1.0), timed("w4a16", 0.8),
        Cell("original", [2 * t for t in STEADY], options=eager),
        Cell("w4a16", STEADY, options=eager),
    )  # fmt: skip
    choice = mixed(rows, {})
    assert choice.candidate == "w4a16 (without enforce_eager)" or choice.candidate == "w4a16"
    assert choice.ratio is not None
    assert choice.ratio.ratio == pytest.approx(1.25, rel=0.01)


def test_a_scenario_is_answered_against_the_original_of_a_mix_of_it() -> None:
    """The fastest one. The tables have the speed-up over the one with the most similar options."""
    eager = {"enforce_eager": True}
    rows = runs(
        timed("original", 1.0),
        Cell("original", [2 * t for t in STEADY], options=eager),
        Cell("w4a16", [0.8 * t for t in STEADY], options=eager),
    )
    for choice in (chosen(rows), mixed(rows, {})):
        assert choice.candidate is not None
        assert choice.candidate.startswith("w4a16")
        assert choice.ratio is not None
        assert choice.ratio.ratio == pytest.approx(1.25, rel=0.01)
    (entry,) = [e for e in ranked(rows)[0].workloads[0].entries if e.checkpoint == "w4a16"]
    assert entry.ratio is not None
    assert entry.ratio.ratio == pytest.approx(2.5, rel=0.01)


def test_what_misses_targets_is_listed_by_its_speed() -> None:
    for choice in (
        chosen(THREE, TargetsConfig(tpot_ms=0.1)),
        mixed(THREE, {}, TargetsConfig(tpot_ms=0.1)),
    ):
        assert [one.candidate for one in choice.refused] == ["w4a16", "w8a8", "original"]


def test_a_tie_in_a_mix_is_a_tie_between_the_two_themselves() -> None:
    """A noisy original makes no two others alike."""
    noisy = Cell("original", [1.0, 1.15, 0.9, 1.1])
    rows = runs(noisy, timed("a", 0.5), timed("b", 0.55))
    assert mixed(rows, {}).tied == []


def test_a_scenario_with_two_lengths_still_counts_as_standard() -> None:
    rows = runs(timed("original", 1.0), timed("w4a16", 0.5), timed("original", 1.0, "base"))
    rows += runs(timed("w4a16", 1.1, "base"))
    rows += runs(Cell("original", STEADY, inputs=32), Cell("w4a16", STEADY, inputs=32))
    choice = mixed(rows, {})
    assert choice.candidate == "w4a16"
    assert choice.ratio is not None
    assert choice.ratio.ratio == pytest.approx(1 / (0.25 * 0.5 + 0.25 + 0.5 * 1.1), rel=0.01)


@pytest.mark.parametrize("latencies", [[], [1.0], [1.0, 2.0, 3.0]], ids=["none", "one", "spread"])
def test_without_a_ranked_original_nothing_is_recommended(latencies: list[float]) -> None:
    """Missing, run once, or too noisy: what is slower than it cannot be known."""
    rows = runs(timed("original", 1.0, "base"), timed("w4a16", 0.5, "base"))
    rows += runs(Cell("original", latencies), timed("w4a16", 0.5))
    group, judged = ranked(rows)[0], qualities(rows)
    facts = setup_facts(group, judged)
    choices = {
        workload.name: choose(workload, TargetsConfig(), judged, facts)
        for workload in group.workloads
    }
    assert choices["base"].candidate == "w4a16"
    assert choices["interactive"].candidate is None
    assert "the original" in choices["interactive"].why
    whole = mixed(rows, {})
    assert whole.candidate is None
    assert whole.headline == "No recommendation"
    assert "interactive" in whole.why


@pytest.mark.parametrize("judged", [[], [accuracy_row("w8a8", 0.999, "no loss seen")]])
def test_what_is_slower_than_the_original_is_never_recommended(judged: list[Row]) -> None:
    rows = runs(timed("original", 1.0), timed("w8a8", 1.2), timed("w4a16", 1.1)) + judged
    for choice in (chosen(rows), mixed(rows, {})):
        assert choice.candidate == "original"


def test_what_was_not_judged_is_no_headline_beside_what_was() -> None:
    rows = [*THREE, accuracy_row("w8a8", 0.999, "no loss seen")]
    for choice in (chosen(rows), mixed(rows, {})):
        assert (choice.candidate, choice.unjudged) == ("w8a8", False)
        assert choice.headline == "Serve w8a8"
        assert any("w4a16" in words and "not judged" in words for words in choice.changes)
    allowed = chosen(rows, TargetsConfig(allow_unjudged=True))
    assert allowed.headline == "Fastest, accuracy not judged: w4a16"


def test_where_nothing_was_judged_the_headline_says_so() -> None:
    for choice in (chosen(THREE), mixed(THREE, {})):
        assert choice.headline == "Fastest, accuracy not judged: w4a16"


def test_pruned_weights_are_no_headline_unless_they_were_judged() -> None:
    rows = runs(timed("original", 1.0), timed("w8a8", 0.8), timed("sparse", 0.6))
    for row in rows:
        row.environment.pruned = row.checkpoint == "sparse"
    for choice in (chosen(rows), mixed(rows, {})):
        assert choice.candidate == "w8a8"
        assert any("sparse" in words for words in choice.changes)
    judged = [*rows, accuracy_row("sparse", 0.99, "no loss seen")]
    assert chosen(judged).candidate == "sparse"


def test_memory_that_is_not_known_wins_no_tie() -> None:
    rows = runs(timed("original", 1.0), timed("a_known", 0.5), timed("another", 0.5))
    for row in rows:
        if row.checkpoint == "a_known":
            row.memory.weights_gib = 14.0
        elif row.checkpoint == "another":
            row.memory = Memory()
    judged = [accuracy_row(name, 1.0, "no loss seen") for name in ("a_known", "another")]
    assert chosen([*rows, *judged]).candidate == "a_known"


def test_what_may_not_be_served_is_no_other_winner() -> None:
    broken = accuracy_row("w4a16", 0.1, "broken")
    assert not any("w4a16" in words and "alone" in words for words in mixed(
        [*TWO_LOADS, broken], {}).changes)  # fmt: skip


def test_a_target_that_was_not_measured_is_not_met() -> None:
    rows = runs(timed("original", 1.0))
    for row in rows:
        row.values = without(row.values, "ttft_last_s", "tpot_median_s")
        row.memory = Memory()
    for target in ("ttft_ms", "tpot_ms", "max_memory_gib"):
        assert chosen(rows, TargetsConfig(**{target: 1e9})).candidate is None


def test_a_checkpoint_that_answers_no_numbers_is_broken_though_its_row_is_invalid() -> None:
    broken = accuracy_row("w4a16", 0.1, "broken")
    broken.values = without(broken.values, "recovery")
    broken.invalid = ["perplexity is no number"]
    choice = chosen([*THREE, broken])
    assert choice.candidate == "original"
    assert any(refusal.candidate == "w4a16" for refusal in choice.refused)


def test_equal_quality_on_both_sides_of_all_of_it_leaves_the_choice_to_memory() -> None:
    rows = runs(timed("original", 1.0), timed("large", 0.5), timed("small", 0.5))
    for row in rows:
        row.memory.weights_gib = 4.0 if row.checkpoint == "small" else 14.0
    judged = [accuracy_row("large", 1.0002, "no loss seen")]
    judged += [accuracy_row("small", 0.9998, "no loss seen")]
    assert chosen([*rows, *judged]).candidate == "small"


def test_memory_is_never_more_than_the_cache_that_there_was() -> None:
    rows = runs(Cell("original", STEADY, batch=1000, inputs=1000))
    found = comparison_groups(rows)[0].workloads[0].entries[0]
    assert need_gib(found) == pytest.approx(15 + 1000 / 1024)


def test_graphs_of_engines_that_were_loaded_together_have_an_assumed_size() -> None:
    """What vLLM says held what neighbours took at that time."""
    rows = runs(Cell("original", STEADY, batch=1000, inputs=1000))
    for row in rows:
        row.memory.graphs_gib = 13.0
    found = comparison_groups(rows)[0].workloads[0].entries[0]
    without_graphs = 15 + 1000 / 1024
    assert need_gib(found) == pytest.approx(without_graphs + 13)
    for row in rows:
        row.environment.engine_options |= {"gpu_memory_utilization": 0.01}
    assert need_gib(found) == pytest.approx(without_graphs + 1.5)
    for row in rows:
        row.environment.engine_options |= {"enforce_eager": True}
    assert need_gib(found) == pytest.approx(without_graphs)


def test_accuracy_of_other_weights_with_the_same_name_says_nothing() -> None:
    other = accuracy_row("w8a8", 0.5, "loss")
    other.environment.checkpoint_sha256 = "another"
    assert chosen([*runs(timed("original", 1.0), timed("w8a8", 0.8)), other]).quality is None


def test_random_weights_take_the_accuracy_of_their_recipe() -> None:
    cell = timed("w8a8", 0.8)
    cell.weights = "random"
    choice = chosen(
        [*runs(timed("original", 1.0), cell), accuracy_row("w8a8", 0.999, "no loss seen")]
    )
    assert choice.quality is not None
    assert choice.quality.recovery == 0.999
