"""report.html: one page that opens offline, with its data, its charts and its script inside."""

import importlib.metadata
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import vl_convert

from conf.cache import cache_root
from evaluate.published_figures import sources
from evaluate.report.beside import sweep_pairs
from evaluate.report.drawing import CELLS, CONTEXTS, ENGINES, OPERATORS
from evaluate.report.gather import Answer, Report
from evaluate.report.lines import accuracy_lines, choice_table
from evaluate.report.records import Record
from evaluate.report.tables import (
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

FILES = Path(__file__).parent / "page_files"
MOST_LINES = 3000
SHOWN_LINES = 250  # at first; the rest on request
DIGITS = 5
# What the charts draw of a cell; its table has the rest.
DRAWN = (
    *("ground", "scenario", "candidate", "speedup", "speedup_low", "speedup_high", "latency_s"),
    *("output_tok_s", "latencies", "recovery", "verdict"),
)


@dataclass
class Table:
    """A table of the page, ready to be written."""

    name: str
    title: str
    columns: list[Column]
    rows: list[dict[str, Any]]
    sortable: bool = True
    note: str = ""


def write_page(report: Report, out: Path) -> None:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FILES), autoescape=True, trim_blocks=True
    )
    environment.filters["capitalize_first"] = lambda words: words[:1].upper() + words[1:]
    page = environment.get_template("page.html").render(
        title=", ".join(ground.title for ground in report.grounds),
        style=(FILES / "style.css").read_text(encoding="utf-8"),
        script=(FILES / "page.js").read_text(encoding="utf-8"),
        library=library(),
        data=_data(report),
        grounds=[_ground(answer, report) for answer in report.answers],
        setups=_setups(report),
        scenarios=report.names.scenarios,
        candidates=report.names.candidates,
        findings=report.findings,
        charts=report.charts,
        published=sources()["recipe_sweep"],
        tables=_tables(report),
        shown_lines=SHOWN_LINES,
        notes=report.notes,
        left_out=report.left_out + report.faults,
        settings=report.settings,
    )
    (out / "report.html").write_text(page, encoding="utf-8")


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


def _data(report: Report) -> str:
    """What the script needs, as JSON that cannot end its own element."""
    numbers = {ground.title: place for place, ground in enumerate(report.grounds)}
    sets = {}
    for name, records in vars(report.sets).items():
        kept = [
            {key: record[key] for key in DRAWN} if name == CELLS else dict(record)
            for record in records
        ]
        for record in kept:
            if "ground" in record:
                record["ground"] = numbers[record["ground"]]
        sets[name] = [{key: _short(value) for key, value in r.items()} for r in kept]
    content = {
        "shownLines": SHOWN_LINES,
        "grounds": [
            {"model": g.model, "gpu": g.device, "engine": g.engine_title} for g in report.grounds
        ],
        "known": {"scenario": report.names.scenarios, "candidate": report.names.candidates},
        "sets": sets,
        "charts": [
            {"name": chart.name, "data": chart.data, "spec": chart.spec} for chart in report.charts
        ],
    }
    return json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")


def _short(value: Any) -> Any:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


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
        found.append(_plain("accuracy", "Accuracy", titles, lines))
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
        for row in table.rows:
            row["model"] = None  # others' models: no choice of ours hides them
        source = known[published.source]
        table.note = f"{source.title}; {source.hardware}."
        found.append(table)
    return [table for table in found if table.rows]


def _table(
    name: str, title: str, columns: list[Column], records: list[Record], report: Report
) -> Table:
    numbers = {ground.title: place for place, ground in enumerate(report.grounds)}
    shown = records[:MOST_LINES]
    used = [c for c in columns if any(c.shown(record) not in ("", NONE) for record in shown)]
    rows = [
        {
            "ground": numbers.get(str(record.get("ground"))),
            "model": record.get("model"),
            "gpu": record.get("gpu"),
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
        "sort": _short(float(value)) if number and value is not None else None,
        "text": column.is_text or column.shown is speedup,
    }


def _plain(name: str, title: str, titles: list[str], lines: list[list[str]]) -> Table:
    columns = [Column(words, words, str) for words in titles]
    rows = [
        {
            "ground": None,
            "model": line[0],
            "gpu": None,
            "scenario": None,
            "candidate": line[1],
            "cells": [{"shown": word, "sort": None, "text": True} for word in line],
        }
        for line in lines
    ]
    return Table(name, title, columns, rows)
