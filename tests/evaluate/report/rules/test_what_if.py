"""The page's sliders in a real browser: they decide as the report does, and a link keeps them."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from conf.schema.load import GpuConfig
from conf.schema.report import ReportConfig, TargetsConfig
from evaluate.report.contents import read_rows
from evaluate.report.decide.decision import decide
from evaluate.report.writing import write_report
from tests.evaluate.report.browser import CHROMIUM, LIMIT_MS
from tests.evaluate.report.made import Cell, accuracy_row, runs, write
from tests.evaluate.report.made_searches import searched
from tests.evaluate.report.test_prefix_cache import MIX, traffic

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
STEADY = [1.0, 1.001, 0.999]
# Seconds by checkpoint: interactive, high_concurrency, batch_8.
SECONDS = {"original": (1.0, 1.0, 1.0), "w8a8": (0.8, 0.8, 0.8), "w4a16": (0.5, 1.25, 0.5)}
LOADS = ("interactive", "high_concurrency", "batch_8")


def cell(checkpoint: str, seconds: float, load: str) -> Cell:
    """In the setup of the capacity searches."""
    return Cell(
        checkpoint,
        [seconds * t for t in STEADY],
        load,
        engine="vllm_server",
        versions={"vllm": "0.25.1"},
        options={"tensor_parallel_size": 1},
    )


def cell_with(checkpoint: str, has_cache: bool | None) -> Cell:
    options = {} if has_cache is None else {"enable_prefix_caching": has_cache}
    return Cell(checkpoint, STEADY, options=options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("what_if")
    cells = [
        cell(name, part, load)
        for name, parts in SECONDS.items()
        for load, part in zip(LOADS, parts, strict=True)
    ]
    cells.append(cell("fp8", 0.9, "interactive"))
    rows = [
        *runs(*cells),
        accuracy_row("w8a8", 0.999, "no loss seen"),
        accuracy_row("w4a16", 0.985, "small loss"),
        *searched("original", 4, 4, 4),
        *searched("w8a8", 6, 6, 6),
    ]
    write(folder / "results.jsonl", rows)
    write_report(config(folder))
    return folder


def config(
    folder: Path, mix: dict[str, float] | None = None, **targets: float | bool
) -> ReportConfig:
    return ReportConfig(
        results=[str(folder / "results.jsonl")],
        out=str(folder),
        mix=mix or {},
        targets=TargetsConfig(**targets),  # type: ignore[arg-type]
        gpu=GpuConfig(price_per_hour=3.6),
    )


@pytest.fixture(scope="module")
def opened_page(browser: Browser, folder: Path) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1400, "height": 900}, offline=True)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    context.set_default_timeout(LIMIT_MS)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((folder / "report.html").as_uri())
    yield page
    assert errors == []
    context.close()


@pytest.fixture
def page(opened_page: Page) -> Page:
    opened_page.get_by_role("button", name="Reset").click()
    return opened_page


def picked(page: Page) -> str:
    return page.locator(".outcome").get_attribute("data-pick") or ""


def slide(page: Page, setting: str, value: float) -> None:
    page.locator(f'input[type=range][data-setting="{setting}"]').evaluate(
        "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input')); }",
        value,
    )


def test_it_begins_with_the_answer_of_the_report(page: Page, folder: Path) -> None:
    rows, _, _ = read_rows(config(folder))
    choice = decide(rows, config(folder)).answers[0].overall
    assert picked(page) == choice.candidate == "w8a8"
    text = page.locator(".outcome").inner_text()
    assert "The same as the report's answer." in text
    assert choice.ratio is not None
    low, high = choice.ratio.low, choice.ratio.high
    assert f"{choice.ratio.ratio:.2f} times as fast as the original over the mix" in text
    assert f"({low:.2f} to {high:.2f})" in text


@pytest.mark.parametrize(
    ("mix", "targets", "serve"),
    [
        ({"interactive": 90.0, "high_concurrency": 5.0}, {}, "w4a16"),
        ({"batch_8": 100.0}, {}, "w4a16"),
        ({"batch_8": 100.0}, {"min_recovery": 0.99}, "w8a8"),
        ({"interactive": 50.0, "high_concurrency": 50.0}, {"tpot_ms": 5.0}, ""),
        ({"interactive": 100.0}, {"tpot_ms": 8.0}, "w4a16"),
    ],
)
def test_a_link_gives_the_answer_of_the_command_line(
    page: Page, folder: Path, mix: dict[str, float], targets: dict[str, float], serve: str
) -> None:
    options = [f"mix.{name}={share}" for name, share in mix.items()]
    options += [f"targets.{name}={value}" for name, value in targets.items()]
    follow(page, "&".join(options))
    wanted = config(folder, mix, **targets)
    rows, _, _ = read_rows(wanted)
    answer = decide(rows, wanted).answers[0].overall
    assert picked(page) == (answer.candidate or "") == serve


def follow(page: Page, link: str) -> None:
    """Opens a link to the page that is open."""
    page.evaluate(
        """(hash) => new Promise((resolve) => {
            window.addEventListener("hashchange", () => setTimeout(resolve), { once: true });
            location.hash = hash;
        })""",
        f"#?{link}",
    )


def test_sliders_decide_again_and_the_link_restores_them(page: Page, browser: Browser) -> None:
    for name in ("mix.high_concurrency", "mix.batch_8"):
        slide(page, name, 0)
    assert picked(page) == "w4a16"
    assert "The report's own settings give: w8a8." in page.locator(".outcome").inner_text()
    page.locator('input[type=number][data-setting="targets.min_recovery"]').fill("99")
    assert picked(page) == "w8a8"
    notes = page.locator(".outcome tr.refused").all_inner_texts()
    assert any("98.50% of the quality is left, less than 99.00%" in note for note in notes)
    page.get_by_role("button", name="Copy link").click()
    page.wait_for_function("navigator.clipboard.readText().then((text) => text == location.href)")
    link = page.evaluate("navigator.clipboard.readText()")
    assert link == page.url
    assert "targets.min_recovery=0.99" in link
    other = browser.new_page()
    other.goto(link)
    assert picked(other) == "w8a8"
    assert other.locator('output[data-setting="mix.interactive"]').inner_text() == "100%"
    other.get_by_role("button", name="Reset").click()
    assert other.locator('output[data-setting="mix.interactive"]').inner_text() == "50%"
    assert "#" not in other.url
    other.close()


@pytest.mark.parametrize(
    ("link", "weights"),
    [
        ({"interactive": 0.6, "high_concurrency": 0.4}, [60, 40, 0]),
        ({"interactive": 3, "batch_8": 1}, [75, 0, 25]),
        ({"interactive": 3e6, "high_concurrency": 9e6}, [25, 75, 0]),
    ],
)
def test_weights_of_a_link_fit_the_sliders(
    page: Page, folder: Path, link: dict[str, float], weights: list[int]
) -> None:
    follow(page, "&".join(f"mix.{name}={weight}" for name, weight in link.items()))
    shown = [page.locator(f'input[type=range][data-setting="mix.{name}"]') for name in LOADS]
    assert [float(slider.input_value()) for slider in shown] == weights
    assert shares(page) == [f"{weight}%" for weight in weights]
    wanted = config(folder, link)
    rows, _, _ = read_rows(wanted)
    assert picked(page) == (decide(rows, wanted).answers[0].overall.candidate or "")
    for name, weight in zip(LOADS, weights, strict=True):
        if weight:
            slide(page, f"mix.{name}", weight)  # to where it stands
    assert shares(page) == [f"{weight}%" for weight in weights]


def test_a_link_with_the_reports_own_mix_changes_nothing(page: Page) -> None:
    follow(page, "mix.interactive=0.1&mix.high_concurrency=0.1")
    assert "#" not in page.url


def shares(page: Page) -> list[str]:
    return [
        page.locator(f'output[data-setting="mix.{name}"]').text_content() or "" for name in LOADS
    ]


def test_prices_change_the_costs_of_the_mix_and_of_the_capacity(page: Page, folder: Path) -> None:
    content = json.loads((folder / "report.json").read_text())
    setup = content["setups"][0]
    mix_costs = {one["name"]: one["mix_costs"] for one in setup["checkpoints"]}
    rate_costs = {one["checkpoint"]: one["costs"] for one in setup["capacities"]}
    expected = [
        costs[f"money_per_million_{kind}_tokens"]
        for costs in (mix_costs["w8a8"], rate_costs["w8a8"])
        for kind in ("input", "output")
    ]

    def shown() -> list[float]:
        figures = []
        for table in page.locator(".outcome table").all():
            titles = table.locator("thead th").all_inner_texts()
            cells = table.locator("tr.picked > *").all_inner_texts()
            line = dict(zip(titles, cells, strict=True))
            figures += [float(line[f"USD per M tokens {way}"]) for way in ("in", "out")]
        return figures

    assert "w8a8 holds" in page.locator(".outcome .rate").inner_text()
    assert shown() == pytest.approx(expected, rel=0.01)
    slide(page, "gpu.price_per_hour", 7.2)
    assert shown() == pytest.approx([2 * cost for cost in expected], rel=0.01)


def test_commands_to_serve_and_to_measure_are_copied(page: Page) -> None:
    box = page.locator(".outcome .command").first
    box.get_by_role("button").click()
    copied = "python -m serve model=qwen3-8b recipe=w8a8 engine.tensor_parallel_size=1"
    page.wait_for_function(
        "(words) => navigator.clipboard.readText().then((text) => text == words)", arg=copied
    )
    commands = page.locator(".outcome details .command pre").all_text_contents()
    measured = [shlex.split(command) for command in commands if "engine=vllm_server" in command]
    assert ["scenario=[high_concurrency]" in words for words in measured] == [True]
    slide(page, "mix.batch_8", 10)
    commands = page.locator(".outcome details .command pre").all_text_contents()
    assert any("scenario=[high_concurrency,batch_size]" in command for command in commands)
    words = shlex.split(commands[-1])
    assert "gpu.price_per_hour=3.6" in words
    assert "mix.batch_8=10" in words


def test_no_command_is_shown_that_cannot_fill_its_gap(browser: Browser, tmp_path: Path) -> None:
    """The page names the gaps that the report names."""
    rows = [
        *runs(*(cell_with(name, None) for name in ("original", "fp8"))),
        *runs(*(cell_with(name, True) for name in ("original", "fp8"))),
        *traffic("original", 2.0),
    ]
    write(tmp_path / "results.jsonl", rows)
    write_report(config(tmp_path, MIX))
    page = browser.new_page()
    page.goto((tmp_path / "report.html").as_uri())
    page.locator(".outcome details").first.wait_for(state="attached")
    lacking = page.locator(".outcome details p").all_text_contents()
    assert "Fp8 in traffic:" in lacking
    assert not any("enable_prefix_caching=True) in " in what for what in lacking), lacking
    page.close()


def test_without_a_weight_there_is_no_answer(page: Page) -> None:
    for name in LOADS:
        slide(page, f"mix.{name}", 0)
    assert "Every scenario has a weight of 0." in page.locator(".outcome").inner_text()


def test_a_link_with_nonsense_is_read_as_far_as_it_goes(page: Page) -> None:
    follow(page, "setup=9&mix.nothing=3&targets.tpot_ms=-1&targets.min_recovery=x&gpu.x=1&a")
    assert picked(page) == "w8a8"
    page.get_by_role("button", name="Reset").click()
    links = ["mix.constructor=50", "mix.__proto__=3", "targets.constructor=5", "gpu.toString=1"]
    links += ["targets.min_recovery=5", "targets.tpot_ms=1e300", "gpu.price_per_hour=Infinity"]
    follow(page, "&".join(links))
    assert picked(page) == "w8a8"
    assert page.locator('output[data-setting="mix.interactive"]').inner_text() == "50%"
    assert not any(name in page.url for name in ("constructor", "toString", "1e", "recovery"))


def test_the_page_opens_at_a_setup_with_an_answer(browser: Browser, tmp_path: Path) -> None:
    """The first setup has the most runs, and no original."""
    without = [Cell("w8a8", STEADY * 3, load, engine="transformers") for load in LOADS]
    both = [Cell(name, STEADY, LOADS[0]) for name in ("original", "fp8")]
    write(tmp_path / "results.jsonl", [*runs(*without), *runs(*both)])
    write_report(config(tmp_path))
    page = browser.new_page()
    page.goto((tmp_path / "report.html").as_uri())
    assert page.locator("#engine").input_value() == "vllm 0.25.1"
    page.close()
    page = browser.new_page()
    page.goto((tmp_path / "report.html").as_uri() + "#?setup=0")
    assert page.locator("#engine").input_value() == "transformers"
    page.close()


def test_a_phone_shows_it_without_scrolling_sideways(browser: Browser, folder: Path) -> None:
    page = browser.new_page(viewport={"width": 420, "height": 900})
    page.goto((folder / "report.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == 420
    box = page.locator(".outcome table").first.bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= 420
    page.close()


def test_without_scripts_there_are_no_sliders(browser: Browser, folder: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((folder / "report.html").as_uri())
    assert not page.locator("#what-if").is_visible()
    assert page.locator(".copy:visible").count() == 0
    assert (
        "python -m serve model=qwen3-8b recipe=w8a8" in page.locator(".answer").first.inner_text()
    )
    context.close()


def test_a_browser_that_cannot_unpack_the_charts_says_so(browser: Browser, folder: Path) -> None:
    context = browser.new_context()
    context.add_init_script("delete window.DecompressionStream")
    page = context.new_page()
    page.goto((folder / "report.html").as_uri())
    page.get_by_text("This chart could not be drawn").first.wait_for()
    assert picked(page) == "w8a8"
    context.close()


def test_the_page_stays_small(folder: Path) -> None:
    assert (folder / "report.html").stat().st_size < 1e6
