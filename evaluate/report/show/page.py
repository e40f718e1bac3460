"""Writes report.html: one page that works offline, with its data, charts and script inside."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from conf.files.write_whole import write_whole
from evaluate.report.contents import Report
from evaluate.report.decide.commands import Missing, missing_of
from evaluate.report.decide.decision import Answer
from evaluate.report.decide.recommend import Choice
from evaluate.report.decide.workload_text import workload_text
from evaluate.report.machine.build import chosen_commands
from evaluate.report.published.figures import sources
from evaluate.report.show.charts.drawing import CELLS, CONTEXTS, ENGINES, OPERATORS, RATES, Chart
from evaluate.report.show.charts.library import packed_library
from evaluate.report.show.charts.plots import drawn_records, plot_inside
from evaluate.report.show.choice_table import choice_table
from evaluate.report.show.our_kernels.columns import kernel_tables
from evaluate.report.show.page_data import SHOWN_LINES, page_data, setups_of, short
from evaluate.report.show.published_records import sweep_pairs
from evaluate.report.show.records import CellRecord, GroupRecord, Record
from evaluate.report.show.sentences import sentence_lists
from evaluate.report.show.served_loads import columns as served_loads
from evaluate.report.show.served_rates.columns import EXPLANATION, TITLE, rate_columns
from evaluate.report.show.tables import (
    ACCURACY,
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
    used_columns,
)
from evaluate.report.show.terminal_tables import PLUS_MINUS

FILES = Path(__file__).parent / "page_files"
MOST_LINES = 3000
FIRST_CHOICES = 8  # scenarios whose choice is shown before the reader expands the list
SCRIPTS = (
    *("library.js", "charts.js", "rules.js", "settings.js", "controls.js", "outcome.js"),
    *("what_if.js", "page.js"),
)
ROW_NAMES = (SCENARIO.key, CHECKPOINT.key, CHECKPOINT.title)


@dataclass
class Table:
    """A table of the page, ready to be written."""

    name: str
    title: str
    columns: Sequence[Column[Any]]
    lines: list["Line"]
    sortable: bool = True
    note: str = ""

    @property
    def classes(self) -> list[str]:
        """CSS classes by column: for text, and for columns that stay in view when scrolled."""
        sticky = [c.key for c in self.columns if c.key in ROW_NAMES][:2] or [self.columns[0].key]
        return [
            ("t" if c.is_text or c.is_phrase else "")
            + (f" keep-{sticky.index(c.key)}" if c.key in sticky else "")
            for c in self.columns
        ]


@dataclass
class Line:
    """A line of a table, and the fields that the page filters by."""

    setups: list[int] | None
    scenario: str | None
    candidate: str | None
    cells: list["TableCell"]


@dataclass
class TableCell:
    """The text of a cell, and the number that sorts it."""

    shown: str
    sort: float | None


@dataclass
class AnswerText:
    """The answer for one comparison group, as text."""

    title: str
    overall: Choice
    speed: str
    quality: str
    weights: str
    workloads: dict[str, str]
    choice_titles: list[str]
    choices: list[list[str]]
    by_rate: list[Choice]
    serve_commands: list[str]
    missing: list[Missing]


def write_page(report: Report, out: Path) -> None:
    """Writes the page. The plots must be in the folder already; the page shows them if scripts do
    not run."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FILES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["capitalize_first"] = lambda text: text[:1].upper() + text[1:]
    environment.filters["breakable"] = breakable
    tables = _tables(report)
    page = environment.get_template("page.html").render(
        title=", ".join(group.title for group in report.groups),
        style=(FILES / "style.css").read_text(encoding="utf-8"),
        script="\n".join((FILES / name).read_text(encoding="utf-8") for name in SCRIPTS),
        library=packed_library(),
        data=page_data(report),
        answers=[_answer_text(answer, report) for answer in report.answers],
        setups=_setups(report),
        scenarios=report.names.scenarios,
        candidates=report.names.candidates,
        chart_titles=[chart.title for chart in report.charts],
        charts=[_drawing(chart, report, out) for chart in report.charts],
        published=sources()["recipe_sweep"],
        glossary=_glossary(report),
        plus_minus=PLUS_MINUS,
        none_shown=NONE,
        explained=_explained(tables),
        tables=tables,
        shown_lines=SHOWN_LINES,
        first_choices=FIRST_CHOICES,
        lists=sentence_lists(report),
        settings=[(setting, _place(setting.title, report)) for setting in report.how_measured],
    )
    with write_whole(out / "report.html") as unfinished:
        unfinished.write_text(page, encoding="utf-8")


def breakable(name: str) -> Markup:
    """Lets a line break after each underscore of a name, and before the value of an option."""
    escaped = Markup("_<wbr>").join(Markup.escape(piece) for piece in name.split("_"))
    return escaped.replace("=", Markup("=<wbr>"))


@dataclass
class Drawing:
    """A chart of the page, and the plot that replaces it if scripts do not run."""

    chart: Chart
    plot: str
    setup: str
    """The setup that the plot shows; empty if there is only one."""


def _drawing(chart: Chart, report: Report, out: Path) -> Drawing:
    first = drawn_records(chart, report)[0]
    has_setup = isinstance(first, GroupRecord) and len(report.groups) > 1
    return Drawing(chart, plot_inside(chart, out), first.plotted_with if has_setup else "")


def _glossary(report: Report) -> list[tuple[int, str, str]]:
    """The text of every scenario of every setup, with the setup's index."""
    return [
        (place, workload.name, workload_text(workload.settings))
        for place, group in enumerate(report.groups)
        for workload in group.workloads
    ]


def _place(title: str, report: Report) -> int | None:
    places = [n for n, group in enumerate(report.groups) if group.title == title]
    return places[0] if places else None


def _answer_text(answer: Answer, report: Report) -> AnswerText:
    choice, group = answer.overall, answer.group
    weights = [
        record.weights_gib
        for record in report.sets.capacity
        if record.candidate == choice.candidate and record.belongs_to(group)
    ]
    quality = choice.quality.recovery if choice.quality else None
    titles, choices = choice_table(answer.workloads)
    return AnswerText(
        title=group.title,
        overall=choice,
        speed=f"{choice.ratio.ratio:.2f}" if choice.ratio else NONE,
        quality=f"{quality:.1%}" if quality is not None else "not measured",
        weights=f"{weights[0]:.1f} GiB" if weights else NONE,
        workloads={workload.name: workload_text(workload.settings) for workload in group.workloads},
        choice_titles=titles,
        choices=choices,
        by_rate=answer.by_rate,
        serve_commands=chosen_commands(answer),
        missing=missing_of(group, answer.facts, report.config.mix, report.config.results[-1]),
    )


def _setups(report: Report) -> dict[str, list[str]]:
    fields = {"model": "model", "gpu": "device", "engine": "engine_title"}
    return {
        name: list(dict.fromkeys(str(getattr(group, field)) for group in report.groups))
        for name, field in fields.items()
    }


def _tables(report: Report) -> list[Table]:
    cells = report.sets.cells
    served = any(record.goodput_s is not None for record in cells)
    columns: list[Column[CellRecord]] = [SCENARIO, *FIRST]
    columns += [*(GOODPUT if served else ()), *SECOND]
    sets = report.sets
    tables = [_table(CELLS, "Every measurement", columns, cells, report)]
    rates = _table(RATES, TITLE, rate_columns(sets.rates), sets.rates, report)
    rates.note = EXPLANATION
    tables.append(rates)
    served_table = _table(
        served_loads.NAME, served_loads.TITLE, served_loads.PERCENTILE, sets.percentiles, report
    )
    served_table.note = served_loads.EXPLANATION
    tables.append(served_table)
    for own in kernel_tables(sets):
        table = _table(own.name, own.title, own.columns, own.records, report)
        table.note = own.note
        tables.append(table)
    tables.append(_full_table("accuracy", "Accuracy", ACCURACY, report.accuracy, report))
    tables.append(_table(CONTEXTS, "Over the context length", CONTEXT, sets.contexts, report))
    tables.append(_table(ENGINES, "Engines side by side", ENGINE, sets.engines, report))
    tables.append(_table(OPERATORS, "Operators", OPERATOR, sets.operators, report))
    pairs = sweep_pairs(sets.sweep)
    tables.append(_table("pairs", "Speed-ups here and published", SWEEP_PAIR, pairs, report))
    groups = [answer.group for answer in report.answers]
    for published in published_tables(sets, groups):
        table = _table(
            published.source, published.title, published.columns, published.records, report
        )
        table.note = published.note
        tables.append(table)
    return [table for table in tables if table.lines]


def _explained(tables: list[Table]) -> list[tuple[str, Column[Any]]]:
    """The columns whose titles do not say all, with the names of their tables."""
    return [
        (table.name, column)
        for table in tables
        if table.name in (CELLS, RATES)
        for column in table.columns
        if column.explanation
    ]


def _table(
    name: str,
    title: str,
    columns: Sequence[Column[Any]],
    records: Sequence[Record],
    report: Report,
) -> Table:
    """A table without empty columns."""
    used = used_columns(columns, records[:MOST_LINES])
    return _full_table(name, title, used, records, report)


def _full_table(
    name: str,
    title: str,
    columns: Sequence[Column[Any]],
    records: Sequence[Record],
    report: Report,
) -> Table:
    lines = [_line(columns, record, report) for record in records[:MOST_LINES]]
    is_cut = len(records) > MOST_LINES
    note = f"The first {MOST_LINES:,} of {len(records):,}; report.md has all." if is_cut else ""
    return Table(name, title, columns, lines, note=note)


def _line(columns: Sequence[Column[Any]], record: Record, report: Report) -> Line:
    content = record.content()
    cells = []
    for column in columns:
        value = content.get(column.key)
        sort = None
        if isinstance(value, int | float) and not column.is_text:
            sort = short(float(value))
        cells.append(TableCell(column.shown(record), sort))
    setups = setups_of(record, report.groups)
    return Line(setups, _name(content.get("scenario")), _name(content.get("candidate")), cells)


def _name(value: object) -> str | None:
    return None if value is None else str(value)
