"""The page in a real browser: it loads, filters, sorts, fits, and can be used without a mouse."""

import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

from conf.report_schema import ReportConfig
from evaluate.report.story import write_report
from evaluate.table import PLUS_MINUS
from tests.evaluate.report.made import Cell, accuracy_row, runs, write

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
MANY = 10_000
REPEATS = 5
W4A16 = {1: 0.61, 8: 1.0, 64: 1.24}  # of the original's time: faster, level, slower
STEADY = [1.0, 1.001, 0.999]
TIED = {("w4a16", "batch_8")}
# What is wider than the place that it stands in, and cannot be scrolled to.
CUT = """() => [...document.querySelectorAll('main *')].filter((part) => {
    if (part.closest('svg') && part.tagName !== 'svg') return false;
    const box = part.getBoundingClientRect();
    let around = part.closest('.scroll')?.parentElement ?? part.parentElement;
    while (getComputedStyle(around).display === 'contents') around = around.parentElement;
    const style = getComputedStyle(part);
    const scrolls = part.closest('.scroll, pre') && style.display !== 'block';
    return box.width > 0 && !scrolls && style.position !== 'absolute'
        && !part.closest('.data .scroll')
        && box.right > around.getBoundingClientRect().right + 1.5;
}).map((part) => part.tagName + '.' + part.className + ' ' + part.textContent.slice(0, 40))"""
CHARTS_SHARE = """() => [...document.querySelectorAll('.chart:not([hidden]) .drawing svg')].map(
    (svg) => svg.getBoundingClientRect().width / svg.closest('.drawing').clientWidth)"""
TILES = """() => [...document.querySelectorAll('#chart-overview .mark-text.role-mark text')].map(
    (text) => ({words: text.textContent, ...text.__data__.datum}))"""
# Every text of the charts, its colour, and the colour behind it.
TEXTS = """() => {
    const card = getComputedStyle(document.querySelector('.chart .scroll')).backgroundColor;
    const middle = (box) => [box.x + box.width / 2, box.y + box.height / 2];
    const found = [];
    for (const svg of document.querySelectorAll('.drawing svg')) {
        const tiles = [...svg.querySelectorAll('.mark-rect.role-mark path')].map(
            (tile) => [tile.getBoundingClientRect(), getComputedStyle(tile).fill]);
        for (const text of svg.querySelectorAll('text')) {
            const [x, y] = middle(text.getBoundingClientRect());
            const under = tiles.find(([box]) =>
                box.left <= x && x <= box.right && box.top <= y && y <= box.bottom);
            if (text.textContent && getComputedStyle(text).opacity !== '0') found.push({
                words: text.textContent, fill: getComputedStyle(text).fill,
                behind: under ? under[1] : card, tile: Boolean(under)});
        }
    }
    return found;
}"""


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    cells = []
    for batch in (1, 8, 64):
        times = [batch**0.5 * t for t in (1.0, 1.001, 0.999)]
        for device in ("NVIDIA H200", "NVIDIA A100"):
            for name, part in (("original", 1.0), ("w8a8", 0.7), ("w4a16", W4A16[batch])):
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


def wait_for_charts(page: Page) -> None:
    """Until every chart that is shown is drawn as wide as its card."""
    page.wait_for_function(
        """() => [...document.querySelectorAll('section.chart:not([hidden]) .drawing')].every(
            (place) => place.parentElement.hidden || (place.dataset.width &&
                Math.abs(place.dataset.width - place.clientWidth) < 4))"""
    )


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
    assert answer == "Serve w8a8"
    page.get_by_label("Engine").select_option("transformers")
    page.wait_for_function("document.querySelector('#chart-overview').dataset.records == 2")
    boxes, text, links, answer = seen()
    assert boxes == ["interactive", "original", "w4a16"]
    assert "over the whole range" not in text
    assert "the GPU was throttled" in text
    assert "Speed-up over the batch size" not in links
    assert "What stands out" not in links
    assert answer != "Serve w8a8"
    legends = page.locator(".chart:visible .role-legend-label text").all_inner_texts()
    assert "w8a8" not in legends
    page.close()


def test_odd_names_and_gaps_break_nothing(browser: Browser, tmp_path: Path) -> None:
    """Thirty recipes: long, right to left, of emoji and of markup; and measurements that lack."""
    odd = [
        "<script>alert(1)</script>", "</noscript><b>", "مثال_عربي", "🚀" * 12, "a" * 200,
        "x y" * 40, "quote\"'\\", "name (linear_backend=marlin, dtype=bfloat16)", "__proto__",
        "-", "[0].x",
    ]  # fmt: skip
    names = ["original", *odd, *(f"recipe_{n}" for n in range(30 - len(odd)))]
    cells = [Cell(name, STEADY, "tall <i>", batch=8) for name in names]
    cells += [Cell(name, [1.0], f"batch_{n}", batch=n) for n in (1, 2, 4) for name in names[:5]]
    rows = runs(*cells)
    for row in rows[-9:]:
        row.memory, row.limit, row.values = {}, {}, {"latency_s": row.values["latency_s"]}
    results = write(tmp_path / "results.jsonl", rows)
    write_report(ReportConfig(results=[str(results)], out=str(tmp_path)))
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    page = opened(context.new_page(), tmp_path / "report.html")
    for width in (1400, 390):
        page.set_viewport_size({"width": width, "height": 844})
        wait_for_charts(page)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate(CUT) == []
    assert page.locator("#cells th, #cells td").filter(has_text=odd[0]).count() == 4
    assert page.locator("script").count() == 3
    assert page.errors == []  # type: ignore[attr-defined]
    context.close()


@pytest.mark.parametrize("names", [["original"], ["w8a8"]])
def test_one_recipe_alone_makes_a_page(browser: Browser, tmp_path: Path, names: list[str]) -> None:
    results = write(tmp_path / "results.jsonl", runs(*(Cell(name, STEADY) for name in names)))
    write_report(ReportConfig(results=[str(results)], out=str(tmp_path)))
    page = browser.new_page()
    errors: list[str] = []
    page.on("console", lambda m: errors.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((tmp_path / "report.html").as_uri())
    wait_for_charts(page)
    assert len(shown(page)) == 1
    assert errors == []
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
    page.locator("#chart-overview svg .mark-text.role-mark text").first.hover()
    tip = page.locator("#vg-tooltip-element.visible")
    tip.wait_for()
    assert "runs (s)" in tip.inner_text()


@pytest.mark.parametrize("width", [1400, 390])
def test_nothing_overflows(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    wait_for_charts(page)
    sizes = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert sizes[0] <= sizes[1]
    assert page.evaluate(CUT) == []
    for part in page.evaluate(CHARTS_SHARE):
        assert part == pytest.approx(1, abs=0.02)


def test_the_grid_marks_ties_and_only_ties(page: Page) -> None:
    wait_for_charts(page)
    tiles = page.evaluate(TILES)
    assert len(tiles) == 9
    marked = {(t["candidate"], t["scenario"]) for t in tiles if t["words"].endswith("=")}
    assert marked == TIED


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_in_charts_has_a_contrast_of_4_5(
    browser: Browser, page_file: Path, scheme: str
) -> None:
    context = browser.new_context(color_scheme=scheme)  # type: ignore[arg-type]
    page = opened(context.new_page(), page_file)
    wait_for_charts(page)
    texts = page.evaluate(TEXTS)
    on_tiles = [text for text in texts if text["tile"]]
    assert len(on_tiles) == 9 + 18  # the grid of speed-ups, and of both phases' limits
    faint = [(t["words"], t["fill"], t["behind"]) for t in texts if contrast(t) < 4.5]
    assert faint == []
    context.close()


def contrast(text: dict[str, str]) -> float:
    """By the WCAG's definition."""
    lighter, darker = sorted((luminance(text["fill"]), luminance(text["behind"])), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


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


def test_a_hover_explains_a_scenario(page: Page) -> None:
    wait_for_charts(page)
    titles = page.locator("#chart-overview .role-axis-label title").all_text_contents()
    assert "batch_8: 8 requests at once, 128 tokens in, 64 tokens out" in titles
    assert "8 requests at once" in page.locator("#glossary").inner_text()


def test_without_a_script_everything_is_there(browser: Browser, page_file: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(page_file.as_uri())
    plots = page.locator(".drawing svg")
    assert plots.count() == page.locator(".drawing").count() > 3
    for place in range(plots.count()):
        box = plots.nth(place).bounding_box()
        assert box is not None
        assert min(box["width"] / 300, box["height"] / 50) > 1
    assert "1.43" in page.locator("#chart-overview").inner_text()
    assert page.locator(".ground").count() == page.locator(".ground:visible").count() == 2
    assert page.locator("#cells tbody tr:visible").count() == 18
    assert not page.locator(".filters").is_visible()
    context.close()


def test_print_cuts_nothing_and_explains_itself(page: Page) -> None:
    page.set_viewport_size({"width": 703, "height": 1000})  # A4 without its margins
    page.emulate_media(media="print")
    page.wait_for_function(
        "[...document.querySelectorAll('.drawing')].every(p => p.dataset.width == 690)"
    )
    sizes = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert sizes[0] <= sizes[1]
    assert page.evaluate(CUT) == []
    for hidden in (".filters", ".setups", "#theme"):
        assert not page.locator(hidden).is_visible()
    assert page.evaluate("[...document.querySelectorAll('details')].every(part => part.open)")
    words = page.locator("main").inner_text()
    assert "8 requests at once, 128 tokens in, 64 tokens out" in words
    assert words.count(PLUS_MINUS) == 1


def test_the_theme_changes_paper_and_charts(page: Page) -> None:
    colours = []
    for _ in range(2):
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        label = page.locator("#chart-overview svg .role-axis-label text").first
        colours.append((paper, label.get_attribute("fill")))
        page.locator("#theme").click()
        page.wait_for_function(
            "fill => document.querySelector('#chart-overview .role-axis-label text')"
            ".getAttribute('fill') != fill",
            arg=colours[-1][1],
        )
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
