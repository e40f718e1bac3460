"""The page in a real browser: it loads, filters, sorts, follows the setup, and needs no mouse."""

import random
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from conf.schema.report import ReportConfig
from evaluate.report.writing import write_report
from tests.evaluate.report.browser import CHROMIUM, STEADY, drawn, opened, shown, wait_for_charts
from tests.evaluate.report.made import Cell, runs, write

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
MANY = 10_000
REPEATS = 5
SERIOUS = ("serious", "critical")


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
    page.locator("#gpu").select_option("NVIDIA A100")
    assert "NVIDIA A100" in page.locator(".ground:visible .where").inner_text()
    assert len(shown(page)) == 9


def test_another_engine_changes_what_stands_out_filters_charts_and_contents(
    browser: Browser, tmp_path: Path
) -> None:
    sizes = (1, 8, 64)
    rows = runs(
        *(
            Cell(name, [part * t for t in STEADY], f"batch_{n}", batch=n)
            for n in sizes
            for name, part in (("original", 1.0), ("w8a8", 0.7))
        ),
        *(
            Cell(name, [t * 3 for t in STEADY], "interactive", engine="transformers", inputs=64)
            for name in ("original", "w4a16")
        ),
    )
    rows[-1].invalid = ["the GPU was throttled"]
    results = write(tmp_path / "results.jsonl", rows)
    write_report(ReportConfig(results=[str(results)], out=str(tmp_path)))
    page = opened(browser.new_page(), tmp_path / "report.html")
    wait_for_charts(page)

    def seen() -> tuple[list[str], str, list[str], str]:
        boxes = page.locator(".filters label:visible").all_inner_texts()
        links = page.locator("nav li:visible").all_inner_texts()
        text = page.locator("main").inner_text()
        return (
            [box.strip() for box in boxes],
            text,
            links,
            page.locator(".serve:visible").inner_text(),
        )

    boxes, text, links, answer = seen()
    assert boxes == ["batch_1", "batch_8", "batch_64", "original", "w8a8"]
    assert "w8a8 is faster than the original over the whole range" in text
    assert "the GPU was throttled" not in text
    assert "Speed-up over the batch size" in links
    assert answer == "Fastest, accuracy not judged: w8a8"
    page.get_by_label("Engine").select_option("transformers")
    page.wait_for_function("document.querySelector('#chart-overview').dataset.records == 2")
    boxes, text, links, answer = seen()
    assert boxes == ["interactive", "original", "w4a16"]
    assert "over the whole range" not in text
    assert "the GPU was throttled" in text
    assert "Speed-up over the batch size" not in links
    assert "What stands out" not in links
    assert answer == "Serve original"
    legends = page.locator(".chart:visible .role-legend-label text").all_inner_texts()
    assert "w8a8" not in legends
    page.close()


def test_a_click_on_a_title_sorts_by_number_and_back(page: Page) -> None:
    title = page.locator("#cells thead th", has_text="latency (s)")
    title.scroll_into_view_if_needed()
    wait_for_charts(page)  # they push the table down
    for way, order in (("ascending", False), ("descending", True)):
        title.get_by_role("button").click()
        assert title.get_attribute("aria-sort") == way
        cells = page.locator("#cells tbody tr:not([hidden]) td:nth-child(5)")
        values = [float(cell.split()[0]) for cell in cells.all_inner_texts()]
        assert values == sorted(values, reverse=order)


def test_a_hover_shows_the_runs_behind_a_point(page: Page) -> None:
    wait_for_charts(page)  # one that is drawn anew has no tip
    page.locator("#chart-overview svg .mark-text.role-mark text").first.hover()
    tip = page.locator("#vg-tooltip-element.visible")
    tip.wait_for()
    assert "runs (s)" in tip.inner_text()


def test_a_link_of_the_contents_brings_its_heading_into_view(page: Page) -> None:
    wait_for_charts(page)
    links = page.locator("nav a")
    assert links.count() > 6
    for place in range(links.count()):
        href = links.nth(place).get_attribute("href") or ""
        links.nth(place).evaluate("link => link.click()")
        box = page.locator(href).bounding_box()
        bar = page.locator(".filters").bounding_box()
        assert box is not None
        assert bar is not None
        assert box["y"] >= bar["y"] + bar["height"] or bar["y"] > box["y"]
        assert box["y"] < 900


def test_names_stay_in_view_when_a_table_is_scrolled(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    wait_for_charts(page)
    page.locator("#cells").evaluate("table => table.parentElement.scrollLeft = 10000")
    left = page.locator("#cells").locator("xpath=..").bounding_box()
    assert left is not None
    for place in (1, 3):
        box = page.locator(f"#cells tbody tr:first-child td:nth-child({place})").bounding_box()
        assert box is not None
        assert left["x"] <= box["x"] < left["x"] + 200


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
    wait_for_charts(page)
    found = Axe().run(page).response["violations"]
    serious = [f"{v['id']}: {v['nodes'][0]['html']}" for v in found if v["impact"] in SERIOUS]
    assert serious == []
    context.close()


def test_ten_thousand_rows_make_a_page_that_still_filters(browser: Browser, tmp_path: Path) -> None:
    chance = random.Random(0)
    cells = [
        Cell(
            f"recipe_{recipe}" if recipe else "original",
            [chance.gauss(1, 0.01) for _ in range(REPEATS)],
            f"load_{workload}",
            inputs=workload + 1,
        )
        for recipe in range(20)
        for workload in range(MANY // 20 // REPEATS)
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
