"""How the page looks in a real browser: nothing is cut or faint, on screens and on paper."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from conf.schema.report import ReportConfig
from evaluate.report.show.terminal_tables import PLUS_MINUS
from evaluate.report.writing import write_report
from evaluate.results.row_types import Limit, Memory
from evaluate.results.row_values import SpeedValues
from tests.evaluate.report.browser import CHROMIUM, STEADY, opened, shown, wait_for_charts
from tests.evaluate.report.made import Cell, accuracy_row, runs, write

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
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
        row.memory, row.limit = Memory(), Limit()
        row.values = SpeedValues(latency_s=row.values.latency_s)
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


@pytest.mark.parametrize("width", [1400, 390])
def test_nothing_overflows(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    wait_for_charts(page)
    sizes = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert sizes[0] <= sizes[1]
    assert page.evaluate(CUT) == []
    for part in page.evaluate(CHARTS_SHARE):
        assert part == pytest.approx(1, abs=0.02)


def test_the_choices_are_not_cut_where_names_are_long(browser: Browser, tmp_path: Path) -> None:
    """With every column, at widths from a phone to a wide screen."""
    auto = {"kernels": "auto"}
    scenarios = ("interactive", "high_concurrency", "long_context")
    seconds = {"original": 1.0, "w8a8_smooth_gptq": 0.8, "w8a8_sparse_smooth_gptq": 0.7}
    cells = [
        Cell(name, [part * t for t in STEADY], scenario, options=options)
        for scenario in scenarios
        for name, part in seconds.items()
        for options in ({}, {} if name == "original" else auto)
    ]
    cells += [Cell("w4a16_gptq", [0.5 * t for t in STEADY], name) for name in scenarios]
    judged = [accuracy_row(name, 0.999, "no loss seen") for name in [*seconds][1:]]
    results = write(tmp_path / "results.jsonl", [*runs(*cells), *judged])
    write_report(ReportConfig(results=[str(results)], out=str(tmp_path)))
    page = browser.new_page()
    page.goto((tmp_path / "report.html").as_uri())
    titles = page.locator(".picks thead th").all_inner_texts()
    assert titles == [
        "scenario",
        "serve",
        "times as fast",
        "quality left",
        "next",
        "would change it",
    ]
    for width in (1600, 1280, 1261, 1260, 1000, 821, 820, 420):
        page.set_viewport_size({"width": width, "height": 900})
        box = page.locator(".picks .scroll")
        assert box.evaluate("(box) => box.scrollWidth <= box.clientWidth"), width
    page.close()


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
