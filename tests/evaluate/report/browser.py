"""A real browser for the tests of the page, and what they ask of it."""

import shutil
from pathlib import Path

from playwright.sync_api import Page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
STEADY = [1.0, 1.001, 0.999]
LIMIT_MS = 120_000  # of a machine that does much else


def opened(page: Page, file: Path) -> Page:
    errors: list[str] = []
    page.on("console", lambda m: errors.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.errors = errors  # type: ignore[attr-defined]
    page.set_default_timeout(LIMIT_MS)
    page.goto(file.as_uri())
    page.locator("#chart-overview").scroll_into_view_if_needed()
    page.wait_for_selector("#chart-overview[data-records] svg")  # drawn by the script
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
