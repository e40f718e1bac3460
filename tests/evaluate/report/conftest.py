"""One page and one browser for all tests of a file."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from conf.schema.report import ReportConfig
from evaluate.report.writing import write_report
from tests.evaluate.report.browser import CHROMIUM, LIMIT_MS, opened
from tests.evaluate.report.made import Cell, accuracy_row, runs, write

W4A16 = {1: 0.61, 8: 1.0, 64: 1.24}  # of the original's time: faster, level, slower


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
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=LIMIT_MS
        )
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Browser, page_file: Path) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1400, "height": 900}, offline=True)
    found = opened(context.new_page(), page_file)
    yield found
    assert found.errors == []  # type: ignore[attr-defined]
    context.close()
