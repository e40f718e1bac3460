"""Writes report.md: the answer first, then padded tables and SVG plots."""

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from conf.files.write_whole import write_whole
from conf.schema.report import report_command
from evaluate.report.contents import Report
from evaluate.report.decide.commands import missing_of
from evaluate.report.decide.comparison import ComparisonGroup
from evaluate.report.decide.decision import Answer
from evaluate.report.decide.workload_text import workload_text
from evaluate.report.machine.build import chosen_commands
from evaluate.report.published.figures import sources
from evaluate.report.show.charts.plots import drawn_records, plot_name
from evaluate.report.show.choice_table import choice_table
from evaluate.report.show.kernels.columns import GRID
from evaluate.report.show.our_kernels.columns import (
    BY_TOKENS,
    GAIN,
    LAYER,
    NO_VLLMS_OWN,
    OVER_VLLMS_OWN,
)
from evaluate.report.show.published_records import sweep_pairs
from evaluate.report.show.records import CellRecord, GroupRecord
from evaluate.report.show.served_rates.columns import EXPLANATION, TITLE, rate_columns
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
    explained_columns,
    published_tables,
    used_columns,
)
from evaluate.report.show.terminal_tables import PLUS_MINUS

ShownGroup = TypeVar("ShownGroup", bound=GroupRecord)
SPECIAL = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;"} | {sign: f"\\{sign}" for sign in "\\`*_[]|~#!"}
)


def write_markdown(report: Report, out: Path) -> None:
    plots = {chart.name: plot_name(chart) for chart in report.charts}
    text = "\n".join(_lines(report, plots)).rstrip() + "\n"
    with write_whole(out / "report.md") as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def escape(text: str) -> str:
    """Escapes text of the data, so that no renderer takes it for markup. An underscore inside a
    word needs no escape, and names have many of them."""
    return re.sub(r"(?<=\w)\\_(?=\w)", "_", " ".join(text.split()).translate(SPECIAL))


def _lines(report: Report, plots: dict[str, str]) -> list[str]:
    lines = ["# What to serve", ""]
    for answer in report.answers:
        lines += _answer(report, answer)
    if not report.answers:
        lines += ["No speed was measured: nothing to recommend.", ""]
    lines += _bullets("Before you trust it", report.notes)
    lines += _bullets("What stands out", report.findings)
    lines += _charts(report, plots, ("overview", "frontier", "batches", "kernels"))
    lines += _rates(report, plots)
    lines += _our_kernels(report, plots)
    for group in report.groups:
        lines += _scenarios(report, group)
    lines += _columns(report)
    lines += _charts(report, plots, ("limits", "capacity"))
    lines += _accuracy(report)
    lines += _further(report, plots)
    lines += _published(report, plots)
    lines += _kernels(report, plots)
    lines += _bullets("Failed, skipped, or in no average", report.left_out + report.faults)
    lines += _environment(report)
    return lines


def _answer(report: Report, answer: Answer) -> list[str]:
    choice, has_several_groups = answer.overall, len(report.answers) > 1
    lines = [f"## {escape(answer.group.title)}", ""] if has_several_groups else []
    if not has_several_groups:
        lines += [f"{escape(answer.group.title)}.", ""]
    lines += [f"**{escape(choice.headline)}**: {escape(choice.why)}.", ""]
    for by_rate in answer.by_rate:
        name, text = escape(by_rate.workload), escape(by_rate.why)
        lines += [f"For {name}: **{escape(by_rate.headline)}**: {text}.", ""]
    if choice.tied:
        lines += [f"No significant difference from: {escape(', '.join(choice.tied))}.", ""]
    if choice.second:
        lines += [f"Second: {escape(choice.second)}.", ""]
    lines += [f"- Would change the answer: {escape(change)}." for change in choice.changes]
    for refusal in choice.refused:
        lines.append(
            f"- Left out: {escape(refusal.candidate)}, {escape('; '.join(refusal.reasons))}."
        )
    titles, choices = choice_table(answer.workloads)
    table = _table(titles, [[escape(cell) for cell in line] for line in choices])
    return [*lines, "", *table, "", *_commands(report, answer)]


def _commands(report: Report, answer: Answer) -> list[str]:
    """What to type: to serve the answer, and to measure what it lacks."""
    lines = []
    serving = chosen_commands(answer)
    if serving and all(map(_can_be_copied, serving)):
        lines += ["To serve it:", "", "```sh", *serving, "```", ""]
    config = report.config
    missing = missing_of(answer.group, answer.facts, config.mix, config.results[-1])
    if missing:
        lines += ["Not measured:", ""]
        lines += [f"- {escape(one.what)}: {_code(one.command)}" for one in missing]
        lines.append("")
    return lines


def _scenarios(report: Report, group: ComparisonGroup) -> list[str]:
    has_several_groups = len(report.groups) > 1
    cells: dict[str, list[CellRecord]] = defaultdict(list)
    for record in report.sets.cells:
        if record.belongs_to(group):
            cells[record.scenario].append(record)
    lines = [
        f"## Scenarios{': ' + escape(group.title) if has_several_groups else ''}",
        "",
        PLUS_MINUS,
        "",
    ]
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
        lines += [*_used_columns_table(FIRST, records), ""]
        lines += [
            *_used_columns_table((CHECKPOINT, *(GOODPUT if served else ()), *SECOND), records),
            "",
        ]
    return lines


def _columns(report: Report) -> list[str]:
    """What the columns of the scenarios mean."""
    if not any(group.workloads for group in report.groups):
        return []
    lines = ["### Columns", ""]
    used = used_columns(explained_columns(), report.sets.cells)
    lines += [f"- {escape(one.title)}: {escape(one.explanation)}." for one in used]
    return [*lines, ""]


def _rates(report: Report, plots: dict[str, str]) -> list[str]:
    records = report.sets.rates
    if not records:
        return []
    lines = [f"## {TITLE}", "", EXPLANATION, ""]
    for group_and_traffic in dict.fromkeys((r.group, r.traffic) for r in records):
        own = [r for r in records if (r.group, r.traffic) == group_and_traffic]
        lines += [f"{escape(', '.join(group_and_traffic))}.", ""]
        lines += [*_used_columns_table(rate_columns(own), own), ""]
    explained = [one for one in used_columns(rate_columns(records), records) if one.explanation]
    lines += [f"- {escape(one.title)}: {escape(one.explanation)}." for one in explained]
    lines.append("")
    return lines + _charts(report, plots, ("interactivity",), level=3)


def _our_kernels(report: Report, plots: dict[str, str]) -> list[str]:
    gains, layers = report.sets.gains, report.sets.layers
    if not layers:
        return []
    lines = ["## Our kernels", "", OVER_VLLMS_OWN if gains else NO_VLLMS_OWN, ""]
    lines += _charts(report, plots, ("gains",), level=3)
    lines += _tables_by_group(GAIN, gains)
    lines += [*_charts(report, plots, ("hand-overs",), level=3), BY_TOKENS, ""]
    return lines + _tables_by_group(LAYER, layers)


def _tables_by_group(
    columns: Sequence[Column[ShownGroup]], records: Sequence[ShownGroup]
) -> list[str]:
    """A table for each comparison group, with its title if there are several."""
    titles = list(dict.fromkeys(record.group for record in records))
    lines = []
    for title in titles:
        lines += [f"{escape(title)}.", ""] if len(titles) > 1 else []
        own = [record for record in records if record.group == title]
        lines += [*_used_columns_table(columns, own), ""]
    return lines


def _accuracy(report: Report) -> list[str]:
    if not report.accuracy:
        return []
    return ["## Accuracy", "", *_used_columns_table(ACCURACY, report.accuracy), ""]


def _further(report: Report, plots: dict[str, str]) -> list[str]:
    lines = []
    contexts = report.sets.contexts
    if contexts:
        lines += ["## Over the context length", ""]
        for group_and_family in dict.fromkeys((r.group, r.family) for r in contexts):
            records = [r for r in contexts if (r.group, r.family) == group_and_family]
            lines += [
                f"### {escape(', '.join(group_and_family))}",
                "",
                *_used_columns_table(CONTEXT, records),
                "",
            ]
        lines += _charts(report, plots, ("contexts",), level=3)
    lines += _charts(report, plots, ("engines",))
    if engines := report.sets.engines:
        lines += [*_used_columns_table(ENGINE, engines), ""]
    lines += _charts(report, plots, ("profiles",))
    if report.sets.operators:
        lines += ["### Operators", "", *_used_columns_table(OPERATOR, report.sets.operators), ""]
    return lines + _charts(report, plots, ("sensitivity",))


def _published(report: Report, plots: dict[str, str]) -> list[str]:
    lines = []
    if "published" in plots:
        source = sources()["recipe_sweep"]
        lines += _charts(report, plots, ("published",))
        lines += [f"{source.title}; hardware: {source.hardware}, model: {source.model}.", ""]
        lines += [*_used_columns_table(SWEEP_PAIR, sweep_pairs(report.sets.sweep)), ""]
    groups = [answer.group for answer in report.answers]
    for table in published_tables(report.sets, groups):
        lines += [f"### {table.title}", "", table.note, ""]
        lines += [*_used_columns_table(table.columns, table.records), ""]
    return lines


def _kernels(report: Report, plots: dict[str, str]) -> list[str]:
    """Kernels that were timed alone, beside torch's product in bf16."""
    records = report.sets.kernel_grid
    if not records:
        return []
    return [*_charts(report, plots, ("kernel_grid",)), *_used_columns_table(GRID, records), ""]


def _environment(report: Report) -> list[str]:
    lines = ["## How it was measured", ""]
    for setting in report.how_measured:
        lines += [f"### {escape(setting.title)}", ""]
        lines += [f"- {escape(key)}: {escape(value)}" for key, value in setting.facts.items()]
        lines.append("")
        if setting.commands:
            lines += ["```sh", *setting.commands, "```", ""]
    return [*lines, "Written by", "", "```sh", report_command(report.config), "```"]


def _bullets(title: str, sentences: list[str]) -> list[str]:
    if not sentences:
        return []
    return [f"## {title}", "", *(f"- {_with_command(sentence)}" for sentence in sentences), ""]


def _with_command(sentence: str) -> str:
    """The sentence; a command at its end can be copied, so nothing in it is escaped."""
    found = re.fullmatch(r"(.*: )((?:python -m|quantline) .*)", sentence)
    return f"{escape(found[1])} {_code(found[2])}" if found is not None else escape(sentence)


def _code(command: str) -> str:
    """The command as code, if that is safe."""
    return f"`{command}`" if _can_be_copied(command) else escape(command)


def _can_be_copied(command: str) -> bool:
    """Whether no renderer takes a part of it for markup: names in results can be anything."""
    return re.search(r"[`<>\n]", command) is None


def _used_columns_table(columns: Sequence[Column[Shown]], records: Sequence[Shown]) -> list[str]:
    return _records_table(used_columns(columns, records), records)


def _records_table(columns: Sequence[Column[Shown]], records: Sequence[Shown]) -> list[str]:
    rows = [[escape(column.shown(record)) for column in columns] for record in records]
    return _table([column.title for column in columns], rows)


def _table(titles: list[str], rows: list[list[str]]) -> list[str]:
    """A padded table, which is also readable as plain text."""
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    lines = [titles, ["-" * width for width in widths], *rows]
    return [
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
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
