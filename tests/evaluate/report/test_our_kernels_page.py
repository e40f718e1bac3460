"""The section on our kernels in a real browser: wide and narrow, light and dark, filtered."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from conf.schema.report import ReportConfig
from evaluate.report.writing import write_report
from tests.evaluate.report.browser import CHROMIUM, drawn, opened, shown, wait_for_charts
from tests.evaluate.report.made import Cell, runs, write
from tests.evaluate.report.test_our_kernels import LEFT_TO_VLLM, NARROW, REFUSED, cell
from tests.evaluate.report.test_page_look import CHARTS_SHARE, CUT, TEXTS, contrast

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
LONG = "w8a8_sparse_smooth_gptq"
# Names of rows, without the title that explains each of them.
ON_MAP = """() => [...document.querySelectorAll('#chart-hand-overs .role-axis-label text')]
    .filter((text) => typeof text.__data__.datum.value === 'string')
    .map((text) => [...text.childNodes].filter((part) => part.nodeType === Node.TEXT_NODE)
        .map((part) => part.textContent).join(''))"""
BANDS = """() => [...document.querySelectorAll('#chart-hand-overs .mark-rect.role-mark path')]
    .filter((path) => getComputedStyle(path).opacity !== '0')
    .map((path) => ({...path.__data__.datum, width: path.getBoundingClientRect().width}))"""


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kernels")
    cells: list[Cell] = []
    for measure, batch in (("decode", 1), ("chat", 8)):
        cells.append(cell("original", 1.5, measure, batch=batch))
        for name, layers in (("w4a16", [NARROW]), (LONG, [REFUSED, LEFT_TO_VLLM])):
            cells.append(cell(name, 1.0, measure, batch=batch, kernel="Machete"))
            ours = {"options": {"kernels": "auto"}, "layers": layers, "kernel": "Quantline"}
            cells.append(cell(name, 0.8, measure, batch=batch, **ours))
    results = write(folder / "results.jsonl", runs(*cells))
    write_report(ReportConfig(results=[str(results)], out=str(folder)))
    return folder / "report.html"


def test_the_map_has_a_row_for_each_kind_of_layer_below_its_checkpoint(page: Page) -> None:
    wait_for_charts(page)
    assert page.evaluate(ON_MAP) == ["", "w4a16 4096x12288", "", "fp8 6144x4096", "int8"]
    bands = page.evaluate(BANDS)
    assert [band["product"] for band in bands] == [
        "marlin", "machete", "unpack", "one_token_fp8", "cutlass_fp8", "vLLM's own",
    ]  # fmt: skip
    one_token, cutlass = bands[3:5]
    assert one_token["width"] == pytest.approx(cutlass["width"] / 13, rel=0.05)  # octaves
    words = page.locator("#chart-hand-overs .mark-text.role-mark text").all_text_contents()
    assert {"machete", "cutlass", "w4a16 (kernels=auto)", f"{LONG} (kernels=auto)"} <= set(words)


def test_a_checkpoint_that_is_switched_off_leaves_the_section(page: Page) -> None:
    wait_for_charts(page)
    before = (drawn(page, "hand-overs"), drawn(page, "gains"), len(shown(page, "layers")))
    assert before == (8, 4, 3)
    page.get_by_label(f"{LONG} (kernels=auto)", exact=True).uncheck()
    page.wait_for_function("document.querySelector('#chart-hand-overs').dataset.records == 4")
    assert page.evaluate(ON_MAP) == ["", "w4a16 4096x12288"]
    assert len(shown(page, "gains")) == 2
    assert [line.split("\t")[1] for line in shown(page, "layers")] == ["w4a16 4096x12288"]


@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_cut_or_faint(
    browser: Browser, page_file: Path, width: int, scheme: str
) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": 844},
        color_scheme=scheme,  # type: ignore[arg-type]
    )
    page = opened(context.new_page(), page_file)
    wait_for_charts(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate(CUT) == []
    for part in page.evaluate(CHARTS_SHARE):
        assert part == pytest.approx(1, abs=0.02)
    faint = [
        (t["words"], t["fill"], t["behind"]) for t in page.evaluate(TEXTS) if contrast(t) < 4.5
    ]
    assert faint == []
    assert page.errors == []  # type: ignore[attr-defined]
    context.close()


def test_print_cuts_nothing(page: Page) -> None:
    page.set_viewport_size({"width": 703, "height": 1000})  # A4 without its margins
    page.emulate_media(media="print")
    page.wait_for_function("document.querySelector('#chart-hand-overs').dataset.width == 690")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for table in ("gains", "layers"):
        box = page.locator(f"#{table}").bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= 703


def test_without_a_script_the_map_is_a_plot(browser: Browser, page_file: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(page_file.as_uri())
    assert "machete" in page.locator("#chart-hand-overs").inner_text()
    assert page.locator("#layers tbody tr:visible").count() == 3
    context.close()
