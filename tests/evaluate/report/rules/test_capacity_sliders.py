"""The sliders of a capacity search in a real browser: they judge its trials as the report does."""

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from conf.schema.report import ReportConfig, TargetsConfig
from evaluate.report.contents import make_report
from evaluate.report.writing import write_report
from tests.evaluate.report.browser import CHROMIUM, LIMIT_MS
from tests.evaluate.report.made import write
from tests.evaluate.report.made_searches import PACED, paced, searched

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")


def config(folder: Path, **targets: float) -> ReportConfig:
    return ReportConfig(
        results=[str(folder / "results.jsonl")],
        out=str(folder),
        targets=TargetsConfig(**targets),  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("capacity")
    rows = [*paced(searched("original", 4, 4)), *paced(searched("w8a8", 8, 8), PACED / 2)]
    write(folder / "results.jsonl", rows)
    write_report(config(folder))
    return folder


@pytest.fixture
def page(browser: Browser, folder: Path) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.set_default_timeout(LIMIT_MS)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((folder / "report.html").as_uri())
    yield page
    page.close()
    assert errors == []


def rate_text(page: Page) -> str:
    return page.locator(".outcome .rate").inner_text()


def test_moving_a_slider_judges_the_trials_again(page: Page, folder: Path) -> None:
    slider = page.locator('input[type=range][data-setting="targets.ttft_ms"]')
    assert "within the targets that it was searched with" in rate_text(page)
    assert page.locator(".outcome").get_attribute("data-pick") == "w8a8"
    slider.focus()
    for _ in range(200):
        page.keyboard.press("ArrowLeft")
        value = float(
            page.locator('input[type=number][data-setting="targets.ttft_ms"]').input_value()
        )
        if value < 250:
            break
    assert f"judged again at TTFT {value:g} ms and TPOT 20 ms" in rate_text(page)
    report = make_report(config(folder, ttft_ms=value))
    choice = report.answers[0].overall
    held = choice.why.split(" requests/s")[0]
    assert f"{choice.candidate} {held} requests/s per GPU" in rate_text(page)
    words = shlex.split(page.locator(".outcome details .command pre").last.text_content() or "")
    assert f"targets.ttft_ms={value:g}" in words


def test_looser_targets_say_at_least(page: Page) -> None:
    page.locator('input[type=number][data-setting="targets.ttft_ms"]').fill("1000000")
    assert "at least" in rate_text(page)
    page.get_by_role("button", name="Reset").click()
    assert "at least" not in rate_text(page)
    assert "targets" not in page.url


def test_a_report_with_targets_and_its_page_say_the_same(
    browser: Browser, folder: Path, tmp_path: Path
) -> None:
    wanted = config(folder, ttft_ms=210.0)
    wanted.out = str(tmp_path)
    write_report(wanted)
    page = browser.new_page()
    page.goto((tmp_path / "report.html").as_uri())
    choice = make_report(wanted).answers[0].overall
    assert choice.why.split(" requests/s")[0] in rate_text(page)
    assert choice.why.split(",")[0][1:] in page.locator(".answer").first.inner_text()
    page.close()


def test_searches_of_earlier_versions_have_no_sliders(browser: Browser, tmp_path: Path) -> None:
    rows = [*searched("original", 4, 4), *searched("w8a8", 8, 8)]
    write(tmp_path / "results.jsonl", rows)
    write_report(config(tmp_path))
    page = browser.new_page()
    page.goto((tmp_path / "report.html").as_uri() + "#?targets.ttft_ms=10")
    assert page.locator('[data-setting="targets.ttft_ms"]').count() == 0
    assert "within the targets that it was searched with" in rate_text(page)
    page.close()
