"""Capacity and cost in the report, from trials that are made up."""

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from conf.schema.report import ReportConfig
from evaluate.report.contents import make_report
from evaluate.report.decide.capacity import START_FACTOR, LimitedBy, capacities
from evaluate.report.decide.comparison import comparison_groups
from evaluate.report.machine.build import report_file
from evaluate.report.writing import write_report
from evaluate.results.capacity_search import Begin, Limit, Trial, next_rate
from evaluate.results.results_file import read, row_of
from evaluate.results.row_values import SpeedValues
from evaluate.results.rows import Row, TrialRow, line_content
from evaluate.results.significance import STATED_MACHINE
from evaluate.results.summary import summarize
from tests.evaluate.report.browser import CHROMIUM, opened, shown
from tests.evaluate.report.made import Cell, accuracy_row, runs, write
from tests.evaluate.report.made_searches import (
    PRICES,
    RESOLUTION,
    on_card,
    searched,
    table_of,
    trial_row,
)

ROWS = [*searched("original", 10.0, 10.3), *searched("fp8", 19.0, 19.4), *searched("w8a8", 10.1)]


def test_rows_of_trials_are_read_back_as_they_were() -> None:
    for row in ROWS:
        again = row_of(line_content(row))
        assert isinstance(again, TrialRow)
        assert again.trial == Trial(again.settings.rate, row.trial.meets)


def test_the_capacity_has_an_interval_and_is_compared_with_the_original() -> None:
    table = table_of(ROWS)
    assert [cell.candidate for cell in table.cells] == ["fp8", "original", "w8a8"]
    fp8, original, w8a8 = table.cells
    assert fp8.rate == pytest.approx(19.2, rel=0.04)
    assert fp8.interval == pytest.approx(
        (
            min(end.low for end in fp8.ends) / START_FACTOR,
            max(end.high for end in fp8.ends) * START_FACTOR,
        )
    )
    (end,) = w8a8.ends
    assert w8a8.interval == pytest.approx((end.low / START_FACTOR, end.high * START_FACTOR))
    assert fp8.ratio is not None
    assert fp8.ratio.differs
    assert fp8.ratio.ratio == pytest.approx(1.89, rel=0.05)
    assert w8a8.ratio is not None
    assert not w8a8.ratio.differs
    assert original.ratio is None
    assert fp8.users(fp8.rate) == pytest.approx(2 * fp8.rate)


def test_three_searches_have_an_interval_of_their_mean() -> None:
    (cell,) = table_of(searched("original", 10.0, 12.0, 14.0)).cells
    low, high = cell.interval
    assert low < 10 * 0.95
    assert high > 14 * 1.05
    (level,) = table_of(searched("original", 10.0, 10.0, 10.0)).cells
    (end, *_) = level.ends
    assert level.interval == pytest.approx((end.low / START_FACTOR, end.high * START_FACTOR))


def test_searches_in_several_starts_show_how_starts_differ() -> None:
    """Many searches that agree within each of two starts do not make a narrow interval."""
    rows = searched("original", 10.0, 10.0, 10.0, 13.0, 13.0, 13.0)
    for row in rows:
        row.start = 1 + row.repeat // 3
    (cell,) = table_of(rows).cells
    first, *_, last = cell.ends
    assert cell.interval == (first.low, last.high)
    for row in rows:
        row.start = 1 + row.repeat // 2
    (cell,) = table_of(rows).cells
    means = [statistics.fmean(end.rate for end in cell.ends[n : n + 2]) for n in (0, 2, 4)]
    summary = summarize(means, [])
    assert cell.interval == pytest.approx((summary.low, summary.high))


def test_rates_are_compared_for_each_gpu() -> None:
    """Two GPUs hold more together, and less each."""
    table = table_of([*searched("original", 10.0), *searched("fp8", 17.0, gpus=2)])
    assert [cell.checkpoint for cell in table.cells] == ["original", "fp8"]
    ratio = table.cells[1].ratio
    assert ratio is not None
    assert ratio.ratio == pytest.approx(0.85, rel=0.05)


def test_a_search_that_has_not_ended_has_no_capacity() -> None:
    (group,) = comparison_groups(searched("original", 10.0)[:-1])
    assert capacities(group, PRICES) == []


def test_targets_that_no_rate_meets_are_said(tmp_path: Path) -> None:
    rows = [*searched("original", 10.0), *searched("slow", 0.0)]
    report = make_report(ReportConfig(results=[str(write(tmp_path / "r.jsonl", rows))]))
    (choice,) = report.answers[0].workloads
    assert choice.candidate == "original"
    assert [(refusal.candidate, refusal.reasons) for refusal in choice.refused] == [
        ("slow", ["no rate meets the targets"])
    ]


def written(rows: list[Row], folder: Path) -> tuple[str, str]:
    results = write(folder / "results.jsonl", rows)
    assert read(results)[1] == []
    write_report(ReportConfig(results=[str(results)], out=str(folder), gpu=PRICES))
    return (folder / "report.md").read_text(), (folder / "report.html").read_text()


def test_the_report_says_what_holds_most_and_what_it_costs(tmp_path: Path) -> None:
    judged = [accuracy_row(name, 0.999, "no loss seen") for name in ("fp8", "w8a8")]
    markdown, page = written([*ROWS, *judged], tmp_path)
    assert "**Serve fp8**: holds 19" in markdown
    assert "times the original's" in markdown
    assert "EUR and 62,500 J per million input tokens; " in markdown
    assert "EUR and 125,000 J per million output tokens; " in markdown
    assert "servers that were searched in one start only" in markdown
    assert "each setup was started once" not in markdown
    assert "## How much traffic one GPU holds" in markdown
    assert "| EUR/M in |" in markdown
    assert "| limited by |" in markdown
    assert "| API server |" in markdown
    assert " 97% " in markdown
    assert "| TTFT (75%)" in markdown
    assert "interactivity.svg" in markdown
    assert "gpu.price_per_hour=3.6" in markdown
    assert "How much traffic one GPU holds" in page
    assert "Throughput against interactivity" in page


def test_a_capacity_stands_beside_other_workloads(tmp_path: Path) -> None:
    cell = Cell("original", [1.0, 1.01, 0.99], engine="vllm_server", versions={"vllm": "0.25.1"})
    speed = [row.with_fields(environment=row.environment) for row in runs(cell)]
    markdown, page = written([*speed, *searched("original", 10.0)], tmp_path)
    assert "For capacity: **Serve original**: holds " in markdown
    assert "For capacity: <b>Serve original</b>, holds " in page
    assert "| interactive | original" in markdown
    assert "| capacity    | original" in markdown


def test_the_front_has_no_trial_that_another_one_beats(tmp_path: Path) -> None:
    report = make_report(ReportConfig(results=[str(write(tmp_path / "r.jsonl", ROWS))]))
    trials = report.sets.trials
    assert {trial.meets for trial in trials} == {"yes"}  # the others were cut off
    best = [trial for trial in trials if trial.is_best]
    assert best
    for trial in trials:
        beaten = any(
            other.user_tok_s > trial.user_tok_s and other.gpu_tok_s > trial.gpu_tok_s
            for other in trials
        )
        assert not (trial.is_best and beaten)


def test_errors_that_stop_a_search_are_no_late_tokens() -> None:
    rows = searched("fp8", 20.0)
    for row in rows:
        row.values.failed_requests = 0.0 if row.trial.meets else 60.0
    (cell,) = table_of(rows).cells
    assert cell.limited_by == LimitedBy(ttft=0.3, tpot=0.1, failed=0.6)
    assert (cell.limited_by.most, cell.limited_by.most_share) == (Limit.FAILURES, 0.6)
    for row in rows:
        row.values.late_first_tokens = row.values.late_further_tokens = 0.0
    (cell,) = table_of(rows).cells  # none was late: that is recorded
    assert cell.limited_by == LimitedBy(ttft=0.0, tpot=0.0, failed=1.0)
    for row in rows:
        known = row.values.numbers()
        row.values = SpeedValues(**{name: known[name] for name in known if "late_" not in name})
    (cell,) = table_of(rows).cells
    assert cell.limited_by is None


def test_capacities_of_two_cards_allow_for_the_noise_between_them(tmp_path: Path) -> None:
    """11 % more on one card is significant, on another one it is not."""
    original, fp8 = searched("original", 10.0, 10.0, 10.0), searched("fp8", 11.3, 11.3, 11.3)
    one = table_of([*on_card("A", original), *on_card("A", fp8)]).cells[0].ratio
    two = table_of([*original, *on_card("B", fp8)]).cells[0].ratio
    assert one is not None
    assert two is not None
    assert one.ratio == two.ratio
    assert math.log(two.ratio / two.low) == pytest.approx(
        math.hypot(math.log(one.ratio / one.low), 1.96 * math.sqrt(2) * STATED_MACHINE), rel=1e-3
    )
    assert two.high > one.high
    results = [str(write(tmp_path / "r.jsonl", [*original, *fp8]))]
    assert any("on 2 machines" in note for note in make_report(ReportConfig(results=results)).notes)


def test_the_original_on_the_same_card_is_the_one_to_compare_with(tmp_path: Path) -> None:
    """Each file has an original; searches of one key in two files are two sessions."""
    files = []
    for card, limit in (("A", 12.0), ("B", 10.0)):
        rows = on_card(card, searched("original", limit))
        for row in rows:
            row.time = row.time.replace("1970", "1971" if card == "A" else "1972")
        fp8 = on_card(card, searched("fp8", 11.5)) if card == "B" else []
        files.append(str(write(tmp_path / f"{card}.jsonl", [*rows, *fp8])))
    (answer,) = make_report(ReportConfig(results=files)).answers
    (table,) = answer.capacities
    assert len([cell for cell in table.cells if cell.checkpoint == "original"]) == 2
    fp8_cell = next(cell for cell in table.cells if cell.checkpoint == "fp8")
    assert fp8_cell.ratio is not None
    assert fp8_cell.ratio.ratio == pytest.approx(1.15, rel=0.06)
    assert {cell.candidate for cell in table.cells} == {"original", "original #2", "fp8"}
    write_report(ReportConfig(results=files, out=str(tmp_path)))
    assert "| original \\#2 |" in (tmp_path / "report.md").read_text()


def with_options(rows: list[TrialRow], **options: Any) -> list[TrialRow]:
    for row in rows:
        options = {**row.environment.engine_options, **options}
        row.environment = row.environment.with_fields(engine_options=options)
        row.key += str(options)
    return rows


def test_what_is_served_is_above_the_highest_original(tmp_path: Path) -> None:
    """FP8 holds twice as much as the original with its own options, and no more than another."""
    judged = accuracy_row("fp8", 0.95, "small loss")
    wide = with_options(searched("original", 20.0, 20.0, 20.0), max_num_seqs=1024)
    rows = [*searched("original", 10.0, 10.0, 10.0), *wide]
    level = [*rows, *searched("fp8", 20.9, 20.9, 20.9), judged]
    report = make_report(ReportConfig(results=[str(write(tmp_path / "r.jsonl", level))]))
    (setup,) = report_file(report).setups
    (answer,) = setup.capacity_answers
    assert (answer.serve, answer.level_with) == ("original (max_num_seqs=1024)", ["fp8"])
    assert (answer.speed_up, answer.next) == (None, "original")
    speed_ups = {one.checkpoint: one.speed_up for one in setup.capacities}
    assert speed_ups["fp8"] is not None
    assert speed_ups["fp8"].value == pytest.approx(2.09, rel=0.01)
    higher = [*rows, *searched("fp8", 25.0, 25.0, 25.0), judged]
    report = make_report(ReportConfig(results=[str(write(tmp_path / "r.jsonl", higher))]))
    (answer,) = report_file(report).setups[0].capacity_answers
    assert answer.serve == "fp8"
    assert answer.speed_up is not None
    assert answer.speed_up.value == pytest.approx(1.25, rel=0.05)
    assert f"{answer.speed_up.value:.2f} times the original's" in answer.reason


def test_a_higher_rate_on_another_machine_may_be_level(tmp_path: Path) -> None:
    """11 % more than an original of another card is within the noise between cards."""
    original = on_card("A", searched("original", 10.0, 10.0, 10.0))
    rows = [*original, *on_card("B", searched("fp8", 11.3, 11.3, 11.3))]
    report = make_report(ReportConfig(results=[str(write(tmp_path / "r.jsonl", rows))]))
    (answer,) = report_file(report).setups[0].capacity_answers
    assert (answer.serve, answer.level_with, answer.next) == ("original", ["fp8"], None)


def without_a_rate(checkpoint: str, repeat: int) -> list[TrialRow]:
    """A search in which no rate meets the targets."""
    rows: list[TrialRow] = []
    begin = Begin(1.0, is_near=False)
    while (rate := next_rate([row.trial for row in rows], RESOLUTION, begin)) is not None:
        rows.append(trial_row(checkpoint, rate, False, repeat))
    return rows


@pytest.mark.parametrize("cards", [("A", "A"), ("A", "B")])
def test_a_search_of_the_original_without_a_rate_leaves_a_ratio_without_an_end(
    cards: tuple[str, str], tmp_path: Path
) -> None:
    original = [*searched("original", 10.0), *without_a_rate("original", 1)]
    rows = [*on_card(cards[0], original), *on_card(cards[1], searched("fp8", 19.0, 19.0))]
    judged = accuracy_row("fp8", 0.999, "no loss seen")
    markdown, page = written([*rows, judged], tmp_path)
    assert " or more)" in markdown
    assert " or more)" in page
    (setup,) = json.loads((tmp_path / "report.json").read_text())["setups"]
    (fp8,) = [one for one in setup["capacities"] if one["checkpoint"] == "fp8"]
    assert fp8["speed_up"]["high"] is None
    assert "inf" not in (tmp_path / "tables" / "rates.csv").read_text()


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
def test_the_page_reads_ratios_without_an_end(browser: Browser, tmp_path: Path) -> None:
    cell = Cell("original", [1.0, 1.01, 0.99], engine="vllm_server", versions={"vllm": "0.25.1"})
    original = [*searched("original", 10.0), *without_a_rate("original", 1)]
    written([*runs(cell), *original, *searched("fp8", 19.0, 19.0)], tmp_path)
    page = opened(browser.new_page(), tmp_path / "report.html")
    assert page.errors == []  # type: ignore[attr-defined]
    assert "or more" in "".join(shown(page, "rates"))
    page.close()


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
def test_the_page_of_a_search_shows_what_a_search_has(browser: Browser, tmp_path: Path) -> None:
    """No filter of scenarios and no column of them, but the columns of the search."""
    markdown, _ = written([*ROWS, accuracy_row("fp8", 0.999, "no loss seen")], tmp_path)
    assert "- users: requests in progress at once.\n" in markdown
    page = browser.new_page()
    page.goto((tmp_path / "report.html").as_uri())
    page.locator("#rates").scroll_into_view_if_needed()
    assert page.locator(".filters summary").inner_text() == "Filters: 3 of 3 checkpoints"
    assert page.locator(".filters legend:visible").all_inner_texts() == ["Checkpoints"]
    titles = page.locator("#glossary dt:visible").all_inner_texts()
    assert "users" in titles
    assert "rank" not in titles
    figures = page.locator(".figures dt:visible").all_inner_texts()
    assert figures == ["times the original's rate", "quality left"]
    page.close()
