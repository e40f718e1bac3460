"""report.md: the answer first, tables that a terminal shows well, plots beside it as SVG."""

import re
import shlex
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from conf.schema.report import ReportConfig, changed_options
from evaluate.report.contents import Report
from evaluate.report.decide.comparison import ComparisonGroup
from evaluate.report.decide.decision import Answer
from evaluate.report.published.figures import sources
from evaluate.report.show.charts.plots import drawn_records, plot_name
from evaluate.report.show.choice_table import choice_table
from evaluate.report.show.published_records import sweep_pairs
from evaluate.report.show.records import CellRecord, GroupRecord
from evaluate.report.show.row_records import accuracy_records
from evaluate.report.show.tables import (
    ACCURACY,
    CHECKPOINT,
    CONTEXT,
    ENGINE,
    FIRST,
    GOODPUT,
    OPERATOR,
    SECOND,
    SWEEP_PAIR,
    Column,
    Shown,
    published_tables,
    used_columns,
)
from evaluate.report.show.terminal_tables import PLUS_MINUS
from evaluate.report.show.workload_text import workload_text

SPECIAL = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;"} | {sign: f"\\{sign}" for sign in "\\`*_[]|~#!"}
)


def write_markdown(report: Report, out: Path) -> None:
    plots = {chart.name: plot_name(chart) for chart in report.charts}
    text = "\n".join(_lines(report, plots)).rstrip() + "\n"
    (out / "report.md").write_text(text, encoding="utf-8")


def escape(words: str) -> str:
    """Words of the data, which no renderer may take for anything else. An underscore inside a word
    is left alone by every renderer, and names are full of them."""
    return re.sub(r"(?<=\w)\\_(?=\w)", "_", " ".join(words.split()).translate(SPECIAL))


def _lines(report: Report, plots: dict[str, str]) -> list[str]:
    lines = ["# What to serve", ""]
    for answer in report.answers:
        lines += _answer(answer, len(report.answers) > 1)
    if not report.answers:
        lines += ["No speed was measured: nothing to recommend.", ""]
    lines += _bullets("Before you trust it", report.notes)
    lines += _bullets("What stands out", report.findings)
    lines += _charts(report, plots, ("overview", "frontier", "batches", "kernels"))
    for group in report.groups:
        lines += _scenarios(report, group)
    lines += _charts(report, plots, ("limits", "capacity"))
    lines += _accuracy(report)
    lines += _further(report, plots)
    lines += _published(report, plots)
    lines += _bullets("Failed, skipped, or in no average", report.left_out + report.faults)
    lines += _environment(report)
    return lines


def _answer(answer: Answer, many: bool) -> list[str]:
    whole = answer.whole
    lines = [f"## {escape(answer.group.title)}", ""] if many else []
    if not many:
        lines += [f"{escape(answer.group.title)}.", ""]
    lines += [f"**{escape(whole.headline)}**: {escape(whole.why)}.", ""]
    if whole.tied:
        lines += [f"No significant difference from: {escape(', '.join(whole.tied))}.", ""]
    if whole.second:
        lines += [f"Second: {escape(whole.second)}.", ""]
    lines += [f"- Would change the answer: {escape(words)}." for words in whole.changes]
    for refusal in whole.refused:
        lines.append(
            f"- Left out: {escape(refusal.candidate)}, {escape('; '.join(refusal.reasons))}."
        )
    titles, choices = choice_table(answer.workloads)
    table = _table(titles, [[escape(word) for word in line] for line in choices])
    return [*lines, "", *table, ""]


def _scenarios(report: Report, group: ComparisonGroup) -> list[str]:
    many = len(report.groups) > 1
    cells: dict[str, list[CellRecord]] = defaultdict(list)
    for record in report.sets.cells:
        if record.belongs_to(group):
            cells[record.scenario].append(record)
    lines = [f"## Scenarios{': ' + escape(group.title) if many else ''}", "", PLUS_MINUS, ""]
    for workload in group.workloads:
        records = cells[workload.name]
        order = {entry.candidate: place for place, entry in enumerate(workload.entries)}
        records.sort(key=lambda record: order[record.candidate])
        served = any(record.goodput_s is not None for record in records)
        lines += [
            f"### {escape(workload.name)}",
            "",
            f"{escape(workload_text(workload.settings))}.",
            "",
        ]
        lines += [*_of(FIRST, records), ""]
        lines += [*_of((CHECKPOINT, *(GOODPUT if served else ()), *SECOND), records), ""]
    return lines


def _accuracy(report: Report) -> list[str]:
    records = accuracy_records(report.rows)
    return ["## Accuracy", "", *_lines_of(ACCURACY, records), ""] if records else []


def _further(report: Report, plots: dict[str, str]) -> list[str]:
    lines = []
    contexts = report.sets.contexts
    if contexts:
        lines += ["## Over the context length", ""]
        for place in dict.fromkeys((r.group, r.family) for r in contexts):
            part = [r for r in contexts if (r.group, r.family) == place]
            lines += [f"### {escape(', '.join(place))}", "", *_of(CONTEXT, part), ""]
        lines += _charts(report, plots, ("contexts",), level=3)
    lines += _charts(report, plots, ("engines",))
    if engines := report.sets.engines:
        lines += [*_of(ENGINE, engines), ""]
    lines += _charts(report, plots, ("profiles",))
    if report.sets.operators:
        lines += ["### Operators", "", *_of(OPERATOR, report.sets.operators), ""]
    return lines + _charts(report, plots, ("sensitivity",))


def _published(report: Report, plots: dict[str, str]) -> list[str]:
    known = sources()
    lines = []
    if "published" in plots:
        source = known["recipe_sweep"]
        lines += _charts(report, plots, ("published",))
        lines += [f"{source.title}; hardware: {source.hardware}, model: {source.model}.", ""]
        lines += [*_of(SWEEP_PAIR, sweep_pairs(report.sets.sweep)), ""]
    for table in published_tables(report.sets):
        source = known[table.source]
        lines += [f"### {table.title}", "", f"{source.title}; {source.hardware}.", ""]
        lines += [*_of(table.columns, table.records), ""]
    return lines


def _environment(report: Report) -> list[str]:
    lines = ["## How it was measured", ""]
    for setting in report.how_measured:
        lines += [f"### {escape(setting.title)}", ""]
        lines += [f"- {escape(key)}: {escape(value)}" for key, value in setting.facts.items()]
        lines.append("")
        if setting.commands:
            lines += ["```sh", *setting.commands, "```", ""]
    return [*lines, "Written by", "", "```sh", _command(report.config), "```"]


def _command(config: ReportConfig) -> str:
    words = [f"results=[{','.join(config.results)}]", f"out={config.out}", *changed_options(config)]
    return shlex.join(["python", "-m", "evaluate.report", *words])


def _bullets(title: str, words: list[str]) -> list[str]:
    if not words:
        return []
    return [f"## {title}", "", *(f"- {escape(line)}" for line in words), ""]


def _of(columns: Sequence[Column[Shown]], records: Sequence[Shown]) -> list[str]:
    return _lines_of(used_columns(columns, records), records)


def _lines_of(columns: Sequence[Column[Shown]], records: Sequence[Shown]) -> list[str]:
    rows = [[escape(column.shown(record)) for column in columns] for record in records]
    return _table([column.title for column in columns], rows)


def _table(titles: list[str], rows: list[list[str]]) -> list[str]:
    """Padded, so that it reads as a table before anything renders it."""
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    lines = [titles, ["-" * width for width in widths], *rows]
    return [
        "| " + " | ".join(word.ljust(w) for word, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    ]


def _charts(
    report: Report, plots: dict[str, str], names: tuple[str, ...], level: int = 2
) -> list[str]:
    lines = []
    for chart in report.charts:
        if chart.name in names:
            lines += [f"{'#' * level} {chart.title}", ""]
            lines += [f"![{escape(chart.description)}]({plots[chart.name]})", ""]
            first = drawn_records(chart, report)[0]
            if isinstance(first, GroupRecord) and len(report.groups) > 1:
                lines += [f"{escape(first.group)}.", ""]
    return lines
