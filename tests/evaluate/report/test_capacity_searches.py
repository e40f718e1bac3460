"""Which trials are one capacity search, and how searches are called."""

import itertools
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from conf.schema.load import ScenarioConfig
from conf.schema.report import ReportConfig
from conf.schema.traffic import COUNTS_IN_LOAD, ONE_PATTERN, CapacityConfig, TrafficLoad
from evaluate.missing import missing_repeats
from evaluate.report.contents import make_report
from evaluate.report.decide.capacity import capacities
from evaluate.report.decide.comparison import comparison_groups
from evaluate.report.machine.build import report_file
from evaluate.results.capacity_search import Found, found
from evaluate.results.row_types import TrafficSettings, TrialSettings
from evaluate.results.rows import TrialRow
from tests.evaluate.report.made import write
from tests.evaluate.report.made_searches import (
    PRICES,
    RESOLUTION,
    on_card,
    searched,
    table_of,
    trial_row,
)


def test_searches_with_other_targets_have_other_titles(tmp_path: Path) -> None:
    strict = searched("original", 5.0)
    for row in strict:
        row.settings.tpot_ms, row.key = 10.0, "strict"
    path = write(tmp_path / "r.jsonl", [*searched("original", 10.0), *strict])
    report = make_report(ReportConfig(results=[str(path)]))
    loose, tight = sorted(choice.workload for choice in report.answers[0].workloads)[::-1]
    assert "TPOT target 20 ms" in loose
    assert "TPOT target 10 ms" in tight
    found = [capacity.targets for capacity in report_file(report).setups[0].capacities]
    assert [targets.tpot_ms for targets in found if targets] == [20.0, 10.0]


def test_searches_of_earlier_versions_are_listed_apart() -> None:
    """They began every repeat at the same conversation."""
    later = searched("original", 12.0)
    for row in later:
        row.settings.traffic.begins_elsewhere, row.key = True, "later"
    (group,) = comparison_groups([*searched("original", 10.0), *later])
    tables = capacities(group, PRICES)
    assert [len(table.cells) for table in tables] == [1, 1]
    titles = [table.title for table in tables]
    assert "each repeat from another conversation on" not in titles[0]
    assert "each repeat from another conversation on" in titles[1]


def test_trials_whose_times_were_drawn_for_each_rate_are_another_search() -> None:
    newer = searched("original", 12.0)
    for row in newer:
        row.settings.capacity.times, row.key = ONE_PATTERN, "newer"
    (group,) = comparison_groups([*searched("original", 10.0), *newer])
    older, other = capacities(group, PRICES)
    assert "arrivals drawn for each rate" in older.title
    assert (other.title, len(other.cells)) == ("capacity", 1)
    assert CapacityConfig().recorded()["times"] == ONE_PATTERN


DIFFERENT: dict[str, Any] = {
    "source": "azure", "sha256": "cd", "arrivals": "bursty", "burstiness": 0.25, "speed": 2.0,
    "pause_s": 5.0, "prefix_caching": False, "tokens": "characters", "conversations": 7,
    "requests": 9, "left_out": 3, "longest_tokens": 99, "input_tokens_mean": 5.0,
    "output_tokens_mean": 6.0, "reusable_share": 0.5, "whole_conversations": True,
    "begins_elsewhere": True,
}  # fmt: skip


@pytest.mark.parametrize("name", [*DIFFERENT, "a_later_field"])
def test_searches_that_differ_have_names_of_their_own(name: str) -> None:
    other = searched("original", 5.0)
    for row in other:
        content = row.settings.traffic.content() | {name: DIFFERENT.get(name, "x")}
        row.settings.traffic, row.key = TrafficSettings.model_validate(content), "other"
    (group,) = comparison_groups([*searched("original", 10.0), *other])
    titles = [table.title for table in capacities(group, PRICES)]
    assert len(set(titles)) == 2, titles


def test_every_setting_of_traffic_is_in_that_test() -> None:
    assert {*DIFFERENT, *COUNTS_IN_LOAD} == {*TrafficSettings.model_fields}


def test_searches_in_bursts_say_so() -> None:
    first, other = searched("original", 10.0), searched("original", 5.0)
    for row, burstiness in [*((row, 2.0) for row in first), *((row, 0.25) for row in other)]:
        row.settings.traffic.arrivals, row.settings.traffic.burstiness = "bursty", burstiness
        row.key = str(burstiness)
    (group,) = comparison_groups([*first, *other])
    titles = [table.title for table in capacities(group, PRICES)]
    assert titles == ["capacity (burstiness 2.0)", "capacity (burstiness 0.25)"]


def ends_of(files: list[list[TrialRow]], folder: Path) -> list[tuple[str, list[Found], int]]:
    paths = [str(write(folder / f"{n}.jsonl", rows)) for n, rows in enumerate(files)]
    (answer,) = make_report(ReportConfig(results=paths)).answers
    return sorted(
        (cell.candidate, cell.ends, len(cell.rows))
        for table in answer.capacities
        for cell in table.cells
    )


def at_minute(rows: list[TrialRow], first: int) -> list[TrialRow]:
    for minute, row in enumerate(rows, start=first):
        row.time = datetime.fromtimestamp(60 * minute, UTC).isoformat()
    return rows


def test_an_old_copy_and_what_went_on_are_one_search_in_any_order(tmp_path: Path) -> None:
    rows = at_minute(searched("original", 10.0), 0)
    curve = at_minute([trial_row("original", 1.25, meets=True, repeat=0)], 50)[0]
    curve.settings = TrialSettings.model_validate(curve.settings.content() | {"curve": True})
    rows.append(curve)
    whole = ends_of([rows], tmp_path)
    for cut in range(1, len(rows)):
        for files in ([rows[:cut], rows], [rows, rows[:cut]]):
            assert ends_of(files, tmp_path) == whole


def test_sessions_do_not_depend_on_the_order_of_files(tmp_path: Path) -> None:
    """A search, another one that began in a file of its own, and what the first went on to."""
    first = at_minute(searched("original", 10.0, 10.3), 0)
    other = at_minute(searched("original", 12.0), 100)
    cut = len(searched("original", 10.0)) + 3
    files = [first[:cut], other, first]
    expected = ends_of([first, other], tmp_path)
    assert [name for name, _, _ in expected] == ["original", "original #2"]
    assert [len(ends) for _, ends, _ in expected] == [2, 1]
    for order in itertools.permutations(files):
        assert ends_of([*order], tmp_path) == expected
    # The first went on later: it is still the first session.
    later = [*first[:cut], *at_minute(first[cut:], 200)]
    for order in itertools.permutations([first[:cut], other, later]):
        assert ends_of([*order], tmp_path) == expected


def test_two_continuations_of_one_copy_are_two_sessions(tmp_path: Path) -> None:
    rows = at_minute(searched("original", 10.0), 0)
    fork = at_minute([row.with_fields() for row in rows[-1:]], 30)
    fork[0].values = fork[0].values.with_fields(latency_s=11.0)
    found = [ends_of(files, tmp_path) for files in ([rows, [*rows[:-1], *fork]],)]
    found.append(ends_of([[*rows[:-1], *fork], rows], tmp_path))
    assert found[0] == found[1]
    assert [len(ends) for _, ends, _ in found[0]] == [1]


def test_a_search_that_begins_again_on_another_card_is_no_second_candidate(tmp_path: Path) -> None:
    rows = on_card("A", at_minute(searched("original", 10.0, 10.3), 0))
    begun = len(searched("original", 10.0)) + 2
    again = on_card("B", at_minute([row.with_fields() for row in rows if row.repeat == 1], 100))
    (whole,) = ends_of([[*(row for row in rows if row.repeat == 0), *again]], tmp_path)
    (continued,) = ends_of([[*rows[:begun], *again]], tmp_path)
    assert continued[:2] == whole[:2]


def test_sessions_do_not_depend_on_the_order_of_lines(tmp_path: Path) -> None:
    """As `cat new.jsonl old.jsonl` makes it."""
    once, twice = searched("original", 10.0, 10.3), searched("original", 10.2)
    old = [*at_minute(once[: len(twice)], 0), *at_minute(twice, 100)]
    added = at_minute(once[len(twice) :], 200)
    found = [ends_of([*files], tmp_path) for files in itertools.permutations([old, [*added, *old]])]
    assert found[0] == found[1]


def test_searches_of_two_traces_have_names_of_their_own(tmp_path: Path) -> None:
    other = searched("original", 5.0)
    for row in other:
        row.settings.traffic.sha256, row.key = "cd", "other"
    path = write(tmp_path / "r.jsonl", [*searched("original", 10.0), *other])
    report = make_report(ReportConfig(results=[str(path)]))
    (setup,) = report_file(report).setups
    names = [capacity.scenario for capacity in setup.capacities]
    assert names == ["capacity (requests ab)", "capacity (requests cd)"]
    assert [answer.scenario for answer in setup.capacity_answers] == names
    hashes = [capacity.targets.traffic_sha256 for capacity in setup.capacities if capacity.targets]
    assert hashes == ["ab", "cd"]
    assert [search.name for search in report.answers[0].facts.searches] == names


def test_a_curve_is_drawn_and_may_be_added_to_a_search(tmp_path: Path) -> None:
    rows = searched("original", 10.0)
    one = trial_row("original", 1.25, meets=False, repeat=0)
    one.settings = TrialSettings.model_validate(one.settings.content() | {"curve": True})
    one.values.cut_off_requests = 0.0
    (before,) = table_of(rows).cells
    (cell,) = table_of([*rows, one]).cells
    assert cell.ends == before.ends
    assert len(cell.rows) == len(rows) + 1
    report = make_report(ReportConfig(results=[str(write(tmp_path / "r.jsonl", [*rows, one]))]))
    assert 1.25 in [trial.rate for trial in report.sets.trials]
    plain, curved = (
        ScenarioConfig(from_traffic=True, traffic=TrafficLoad(), capacity=CapacityConfig(curve=n))
        for n in (0, 1)
    )
    assert plain.identity() == curved.identity()
    assert plain.recorded() == curved.recorded()
    assert missing_repeats(0, 1, [], rows, plain) == []
    assert missing_repeats(0, 1, [], rows, curved) == [0]
    assert missing_repeats(0, 1, [], [*rows, one], curved) == [0]  # at another rate
    (end,) = before.ends
    rows.append(one.with_fields(settings=one.settings.with_fields(rate=end.rate / 8)))
    assert missing_repeats(0, 1, [], rows, curved) == []


def test_a_search_is_whole_on_one_card() -> None:
    """It goes on with its own trials alone: cards of one name have different capacities."""
    plain = ScenarioConfig(from_traffic=True, traffic=TrafficLoad(), capacity=CapacityConfig())
    slow = on_card("A", searched("original", 10.0))
    low = [row for row in slow if row.trial.meets]
    rate = 1.04 * max(row.settings.rate for row in low)
    high = on_card("B", [trial_row("original", rate, meets=False, repeat=0)])
    assert found([row.trial for row in [*low, *high]], RESOLUTION) is not None
    assert missing_repeats(0, 1, [], [*low, *high], plain) == [0]
    assert missing_repeats(0, 1, [], [*slow, *high], plain) == []
    (group,) = comparison_groups([*low, *high])
    assert capacities(group, PRICES) == []
    (cell,) = table_of([*slow, *high]).cells
    assert cell.ends == table_of(slow).cells[0].ends
    assert cell.rows == slow
