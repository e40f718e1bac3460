"""The page in a real browser: it loads, filters, sorts, fits, and can be used without a mouse."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

from conf.report_schema import ReportConfig
from evaluate.report.story import write_report
from tests.evaluate.report.made import Cell, accuracy_row, runs, write

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
MANY = 10_000
REPEATS = 5


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    cells = []
    for batch in (1, 8, 64):
        times = [batch**0.5 * t for t in (1.0, 1.001, 0.999)]
        for device in ("NVIDIA H200", "NVIDIA A100"):
            for name, part in (("original", 1.0), ("w8a8", 0.7), ("w4a16", 0.6 + batch / 100)):
                seconds = [part * t for t in times]
                cells.append(Cell(name, seconds, f"batch_{batch}", batch=batch, device=device))
    rows = [*runs(*cells), accuracy_row("w8a8", 0.999, "no loss seen")]
    results = write(folder / "results.jsonl", rows)
    write_report(ReportConfig(results=[str(results)], out=str(folder)))
    return folder / "report.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Browser, page_file: Path) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1400, "height": 900}, offline=True)
    found = opened(context.new_page(), page_file)
    yield found
    assert found.errors == []  # type: ignore[attr-defined]
    context.close()


def opened(page: Page, file: Path) -> Page:
    errors: list[str] = []
    page.on("console", lambda m: errors.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.errors = errors  # type: ignore[attr-defined]
    page.goto(file.as_uri())
    page.locator("#chart-overview").scroll_into_view_if_needed()
    page.wait_for_selector("#chart-overview svg")
    return page


def shown(page: Page, table: str = "cells") -> list[str]:
    return page.locator(f"#{table} tbody tr:not([hidden])").all_inner_texts()


def drawn(page: Page, chart: str) -> int:
    return int(page.locator(f"#chart-{chart}").get_attribute("data-records") or 0)


def test_the_first_screen_answers_the_question(page: Page) -> None:
    answer = page.locator(".ground:visible .serve")
    assert answer.inner_text() == "Serve w8a8"
    box = answer.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] < 900
    assert "1.43 times as fast" in page.locator(".ground:visible .answer").inner_text()


def test_a_scenario_that_is_switched_off_leaves_tables_and_charts(page: Page) -> None:
    before, points = len(shown(page)), drawn(page, "overview")
    page.get_by_label("batch_8", exact=True).uncheck()
    page.wait_for_function("document.querySelector('#chart-overview').dataset.records == 6")
    assert (before, points) == (9, 9)
    assert len(shown(page)) == 6
    assert not any("batch_8" in line for line in shown(page))


def test_a_checkpoint_that_is_switched_off_leaves_tables_and_charts(page: Page) -> None:
    page.get_by_label("w4a16", exact=True).uncheck()
    page.wait_for_function("document.querySelector('#chart-overview').dataset.records == 6")
    assert not any("w4a16" in line for line in shown(page))


def test_none_of_all_says_that_there_is_nothing_and_all_brings_it_back(page: Page) -> None:
    page.locator("[data-none=candidate]").click()
    assert shown(page) == []
    page.locator("#chart-overview").locator("xpath=../..").locator(".empty:visible").wait_for()
    page.locator("[data-all=candidate]").click()
    page.wait_for_function("document.querySelector('#chart-overview').dataset.records == 9")
    assert len(shown(page)) == 9


def test_another_gpu_has_its_own_answer_and_rows(page: Page) -> None:
    page.get_by_label("GPU").select_option("NVIDIA A100")
    assert "NVIDIA A100" in page.locator(".ground:visible .where").inner_text()
    assert len(shown(page)) == 9


def test_a_click_on_a_title_sorts_by_number_and_back(page: Page) -> None:
    title = page.locator("#cells thead th", has_text="latency (s)")
    title.scroll_into_view_if_needed()
    page.wait_for_timeout(1500)  # charts that are drawn on the way push the table down
    for way, order in (("ascending", False), ("descending", True)):
        title.get_by_role("button").click()
        assert title.get_attribute("aria-sort") == way
        cells = page.locator("#cells tbody tr:not([hidden]) td:nth-child(5)")
        values = [float(cell.split()[0]) for cell in cells.all_inner_texts()]
        assert values == sorted(values, reverse=order)


def test_a_hover_shows_the_runs_behind_a_point(page: Page) -> None:
    page.locator("#chart-overview svg .mark-text.role-mark text").first.hover()
    tip = page.locator("#vg-tooltip-element.visible")
    tip.wait_for()
    assert "runs (s)" in tip.inner_text()


@pytest.mark.parametrize("width", [1400, 390])
def test_nothing_overflows(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    page.wait_for_timeout(300)
    sizes = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert sizes[0] <= sizes[1]


def test_the_theme_changes_paper_and_charts(page: Page) -> None:
    colours = []
    for _ in range(2):
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        label = page.locator("#chart-overview svg .role-axis-label text").first
        colours.append((paper, label.get_attribute("fill")))
        page.locator("#theme").click()
        page.wait_for_timeout(300)
    assert colours[0][0] != colours[1][0]
    assert colours[0][1] != colours[1][1]


def test_the_keyboard_reaches_filters_and_titles(page: Page) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.tagName + document.activeElement.type"))
    assert {"INPUTcheckbox", "SELECTselect-one", "BUTTONbutton"} <= reached


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault(browser: Browser, page_file: Path, scheme: str) -> None:
    context = browser.new_context(color_scheme=scheme)  # type: ignore[arg-type]
    page = opened(context.new_page(), page_file)
    found = Axe().run(page).response["violations"]
    serious = [f"{v['id']}: {v['nodes'][0]['html']}" for v in found if v["impact"] in SERIOUS]
    assert serious == []
    context.close()


SERIOUS = ("serious", "critical")


def test_ten_thousand_rows_make_a_page_that_still_filters(browser: Browser, tmp_path: Path) -> None:
    chance = random.Random(0)
    cells = [
        Cell(
            f"recipe_{recipe}" if recipe else "original",
            [chance.gauss(1, 0.01) for _ in range(REPEATS)],
            f"load_{load}",
            inputs=load + 1,
        )
        for recipe in range(20)
        for load in range(MANY // 20 // REPEATS)
    ]
    results = write(tmp_path / "results.jsonl", runs(*cells))
    write_report(ReportConfig(results=[str(results)], out=str(tmp_path)))
    assert (tmp_path / "report.html").stat().st_size < 5e6
    page = opened(browser.new_page(), tmp_path / "report.html")
    assert len(shown(page)) < MANY // REPEATS
    page.get_by_label("recipe_3", exact=True).uncheck()
    page.wait_for_function("document.querySelector('#chart-overview').dataset.records == 1900")
    page.get_by_role("button", name="Show all 1,900 lines").first.click()
    lines = shown(page)
    assert len(lines) == MANY // REPEATS - 100
    assert not any("recipe_3\t" in line for line in lines)
    assert page.errors == []  # type: ignore[attr-defined]
