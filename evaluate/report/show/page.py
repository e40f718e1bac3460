"""report.html: one page that opens offline, with its data, its charts and its script inside."""

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import vl_convert
from markupsafe import Markup

from conf.cache import cache_root
from evaluate.report.decide.gather import Answer, Report
from evaluate.report.published.figures import sources
from evaluate.report.show.beside import sweep_pairs
from evaluate.report.show.charts.drawing import CELLS, CONTEXTS, ENGINES, OPERATORS, Chart
from evaluate.report.show.charts.plots import drawn_records, plot_inside
from evaluate.report.show.lines import accuracy_lines, choice_table
from evaluate.report.show.load_text import load_words
from evaluate.report.show.page_data import ACCURACY, SHOWN_LINES, page_data, setups_of, short
from evaluate.report.show.records import Record
from evaluate.report.show.sentences import sentence_lists
from evaluate.report.show.tables import (
    CHECKPOINT,
    CONTEXT,
    ENGINE,
    FIRST,
    GOODPUT,
    NONE,
    OPERATOR,
    SCENARIO,
    SECOND,
    SWEEP_PAIR,
    Column,
    published_tables,
    speedup,
)
from evaluate.report.show.terminal_tables import PLUS_MINUS

FILES = Path(__file__).parent / "page_files"
MOST_LINES = 3000
FIRST_CHOICES = 8  # scenarios whose choice is shown at first
SCRIPTS = ("charts.js", "page.js")
ROW_NAMES = (SCENARIO.key, CHECKPOINT.key, CHECKPOINT.title)
EXPLAINED = (*FIRST, *GOODPUT, *SECOND)


@dataclass
class Table:
    """A table of the page, ready to be written."""

    name: str
    title: str
    columns: list[Column]
    rows: list[dict[str, Any]]
    sortable: bool = True
    note: str = ""

    @property
    def classes(self) -> list[str]:
        """Of each column: whether it is text, and whether it stays in view when scrolled."""
        kept = [c.key for c in self.columns if c.key in ROW_NAMES][:2] or [self.columns[0].key]
        return [
            ("t" if c.is_text or c.shown is speedup else "")
            + (f" keep-{kept.index(c.key)}" if c.key in kept else "")
            for c in self.columns
        ]


def write_page(report: Report, out: Path) -> None:
    """The plots are in the folder already: the page shows them where no script runs."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FILES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["capitalize_first"] = lambda words: words[:1].upper() + words[1:]
    environment.filters["breakable"] = breakable
    page = environment.get_template("page.html").render(
        title=", ".join(ground.title for ground in report.grounds),
        style=(FILES / "style.css").read_text(encoding="utf-8"),
        script="\n".join((FILES / name).read_text(encoding="utf-8") for name in SCRIPTS),
        library=library(),
        data=page_data(report),
        grounds=[_ground(answer, report) for answer in report.answers],
        setups=_setups(report),
        scenarios=report.names.scenarios,
        candidates=report.names.candidates,
        chart_titles=[chart.title for chart in report.charts],
        charts=[_drawing(chart, report, out) for chart in report.charts],
        published=sources()["recipe_sweep"],
        glossary=_glossary(report),
        plus_minus=PLUS_MINUS,
        explained=[column for column in EXPLAINED if column.explanation],
        tables=_tables(report),
        shown_lines=SHOWN_LINES,
        first_choices=FIRST_CHOICES,
        lists=sentence_lists(report),
        settings=[(setting, _place(setting.title, report)) for setting in report.settings],
    )
    (out / "report.html").write_text(page, encoding="utf-8")


def breakable(words: str) -> Markup:
    """Names are full of underscores: after one, a line may end."""
    return Markup("_<wbr>").join(Markup.escape(part) for part in words.split("_"))


@dataclass
class Drawing:
    """A chart of the page, and the plot that stands for it where no script runs."""

    chart: Chart
    plot: str
    setup: str
    """The setup that the plot shows, where there are several."""


def _drawing(chart: Chart, report: Report, out: Path) -> Drawing:
    shown = drawn_records(chart, report)[0].get("ground", "") if len(report.grounds) > 1 else ""
    return Drawing(chart, plot_inside(chart, out), shown)


def _glossary(report: Report) -> list[tuple[int, str, str]]:
    """Every scenario of every setup, by its place, with what it asks for."""
    return [
        (place, load.name, load_words(load.settings))
        for place, ground in enumerate(report.grounds)
        for load in ground.loads
    ]


def _place(title: str, report: Report) -> int | None:
    places = [n for n, ground in enumerate(report.grounds) if ground.title == title]
    return places[0] if places else None


def library() -> str:
    """The charting library as one script; packing it takes seconds, so that it is kept."""
    path = cache_root() / "page" / f"vega-{importlib.metadata.version('vl-convert-python')}.js"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(
            vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"), encoding="utf-8"
        )
        partial.replace(path)
    return path.read_text(encoding="utf-8").replace("</script", "<\\/script")


def _ground(answer: Answer, report: Report) -> dict[str, Any]:
    """The answer of one ground, in words."""
    whole = answer.whole
    records = [r for r in report.sets.capacity if r["candidate"] == whole.candidate]
    here = [record for record in records if record["ground"] == answer.ground.title]
    quality = whole.quality.recovery if whole.quality else None
    titles, choices = choice_table(answer.loads)
    return {
        "title": answer.ground.title,
        "whole": whole,
        "speed": f"{whole.ratio.ratio:.2f}" if whole.ratio else NONE,
        "quality": f"{quality:.1%}" if quality is not None else "not measured",
        "weights": f"{here[0]['weights_gib']:.1f} GiB" if here else NONE,
        "loads": {load.name: load_words(load.settings) for load in answer.ground.loads},
        "choice_titles": titles,
        "choices": choices,
    }


def _setups(report: Report) -> dict[str, list[str]]:
    parts = {"model": "model", "gpu": "device", "engine": "engine_title"}
    return {
        name: list(dict.fromkeys(str(getattr(ground, field)) for ground in report.grounds))
        for name, field in parts.items()
    }


def _tables(report: Report) -> list[Table]:
    cells = report.sets.cells
    served = any(record["goodput_s"] is not None for record in cells)
    columns = [SCENARIO, *FIRST, *(GOODPUT if served else ()), *SECOND]
    found = [_table(CELLS, "Every measurement", columns, cells, report)]
    judged = accuracy_lines(report.rows)
    if judged:
        titles, lines = judged
        found.append(_plain(ACCURACY, "Accuracy", titles, lines, report))
    for name, title, shown in (
        (CONTEXTS, "Over the context length", list(CONTEXT)),
        (ENGINES, "Engines side by side", list(ENGINE)),
        (OPERATORS, "Operators", list(OPERATOR)),
    ):
        if records := report.sets.of(name):
            found.append(_table(name, title, shown, records, report))
    pairs = sweep_pairs(report.sets.sweep)
    found.append(_table("pairs", "Speed-ups here and published", list(SWEEP_PAIR), pairs, report))
    known = sources()
    for published in published_tables(report.sets):
        columns = list(published.columns)
        table = _table(published.source, published.title, columns, published.records, report)
        source = known[published.source]
        table.note = f"{source.title}; {source.hardware}."
        found.append(table)
    return [table for table in found if table.rows]


def _table(
    name: str, title: str, columns: list[Column], records: list[Record], report: Report
) -> Table:
    shown = records[:MOST_LINES]
    used = [c for c in columns if any(c.shown(record) not in ("", NONE) for record in shown)]
    rows = [
        {
            "setups": setups_of(record, name, report.grounds),
            "scenario": record.get("scenario"),
            "candidate": record.get("candidate"),
            "cells": [_cell(column, record) for column in used],
        }
        for record in shown
    ]
    more = len(records) - len(shown)
    note = f"The first {MOST_LINES:,} of {len(records):,}; report.md has all." if more else ""
    return Table(name, title, used, rows, note=note)


def _cell(column: Column, record: Record) -> dict[str, Any]:
    value = record.get(column.key)
    number = isinstance(value, int | float) and not column.is_text
    return {
        "shown": column.shown(record),
        "sort": short(float(value)) if number and value is not None else None,
    }


def _plain(
    name: str, title: str, titles: list[str], lines: list[list[str]], report: Report
) -> Table:
    columns = [Column(words, words, str, is_text=True) for words in titles]
    rows = [
        {
            "setups": setups_of({"model": line[0]}, name, report.grounds),
            "scenario": None,
            "candidate": line[1],
            "cells": [{"shown": word, "sort": None} for word in line],
        }
        for line in lines
    ]
    return Table(name, title, columns, rows)
