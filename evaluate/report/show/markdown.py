"""report.md: the answer first, tables that a terminal shows well, plots beside it as SVG."""

import re
import shlex
from collections import defaultdict
from pathlib import Path

from conf.schema.report import ReportConfig, asked
from evaluate.report.decide.comparable import Ground
from evaluate.report.decide.gather import Answer, Report
from evaluate.report.published.figures import sources
from evaluate.report.show.beside import sweep_pairs
from evaluate.report.show.charts.plots import drawn_records, plot_name
from evaluate.report.show.lines import accuracy_lines, choice_table
from evaluate.report.show.load_text import load_words
from evaluate.report.show.records import Record
from evaluate.report.show.tables import (
    CHECKPOINT,
    CONTEXT,
    ENGINE,
    FIRST,
    GOODPUT,
    NONE,
    OPERATOR,
    SECOND,
    SWEEP_PAIR,
    Column,
    published_tables,
)
from evaluate.report.show.terminal_tables import PLUS_MINUS

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
    for ground in report.grounds:
        lines += _scenarios(report, ground)
    lines += _charts(report, plots, ("limits", "capacity"))
    lines += _accuracy(report)
    lines += _further(report, plots)
    lines += _published(report, plots)
    lines += _bullets("Failed, skipped, or in no average", report.left_out + report.faults)
    lines += _environment(report)
    return lines


def _answer(answer: Answer, many: bool) -> list[str]:
    whole = answer.whole
    lines = [f"## {escape(answer.ground.title)}", ""] if many else []
    if not many:
        lines += [f"{escape(answer.ground.title)}.", ""]
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
    titles, choices = choice_table(answer.loads)
    table = _table(titles, [[escape(word) for word in line] for line in choices])
    return [*lines, "", *table, ""]


def _scenarios(report: Report, ground: Ground) -> list[str]:
    many = len(report.grounds) > 1
    cells: dict[str, list[Record]] = defaultdict(list)
    for record in report.sets.cells:
        if record["ground"] == ground.title:
            cells[record["scenario"]].append(record)
    lines = [f"## Scenarios{': ' + escape(ground.title) if many else ''}", "", PLUS_MINUS, ""]
    for load in ground.loads:
        records = cells[load.name]
        order = {entry.candidate: place for place, entry in enumerate(load.entries)}
        records.sort(key=lambda record: order[record["candidate"]])
        served = any(record["goodput_s"] is not None for record in records)
        lines += [f"### {escape(load.name)}", "", f"{escape(load_words(load.settings))}.", ""]
        lines += [*_of(FIRST, records), ""]
        lines += [*_of((CHECKPOINT, *(GOODPUT if served else ()), *SECOND), records), ""]
    return lines


def _accuracy(report: Report) -> list[str]:
    judged = accuracy_lines(report.rows)
    if judged is None:
        return []
    titles, lines = judged
    rows = [[escape(word) for word in line] for line in lines]
    return ["## Accuracy", "", *_table(titles, rows), ""]


def _further(report: Report, plots: dict[str, str]) -> list[str]:
    lines = []
    contexts = report.sets.contexts
    if contexts:
        lines += ["## Over the context length", ""]
        for place in dict.fromkeys((r["ground"], r["family"]) for r in contexts):
            part = [r for r in contexts if (r["ground"], r["family"]) == place]
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
    for setting in report.settings:
        lines += [f"### {escape(setting.title)}", ""]
        lines += [f"- {escape(key)}: {escape(value)}" for key, value in setting.facts.items()]
        lines.append("")
        if setting.commands:
            lines += ["```sh", *setting.commands, "```", ""]
    return [*lines, "Written by", "", "```sh", _command(report.config), "```"]


def _command(config: ReportConfig) -> str:
    words = [f"results=[{','.join(config.results)}]", f"out={config.out}", *asked(config)]
    return shlex.join(["python", "-m", "evaluate.report", *words])


def _bullets(title: str, words: list[str]) -> list[str]:
    if not words:
        return []
    return [f"## {title}", "", *(f"- {escape(line)}" for line in words), ""]


def _of(columns: tuple[Column, ...], records: list[Record]) -> list[str]:
    used = [c for c in columns if any(c.shown(record) not in ("", NONE) for record in records)]
    rows = [[escape(column.shown(record)) for column in used] for record in records]
    return _table([column.title for column in used], rows)


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
            shown = drawn_records(chart, report)[0].get("ground")
            if shown and len(report.grounds) > 1:
                lines += [f"{escape(shown)}.", ""]
    return lines
