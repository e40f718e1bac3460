"""The charts as SVG files, for report.md and for the page if scripts do not run."""

import json
import re
from pathlib import Path

from evaluate.report.contents import Report
from evaluate.report.decide.workload_text import workload_text
from evaluate.report.programs import DrawRequest
from evaluate.report.show.charts.drawing import (
    COLUMN,
    COLUMNS_A_PANEL,
    Chart,
    grid_params,
    with_legend,
)
from evaluate.report.show.records import Record

GRIDS = ("overview", "gains", "limits")
INK, SOFT, LINE, PAPER = "#1d1f21", "#5a6068", "#d9d6ce", "white"
LABEL_COLOURS = {"labelColor": INK, "titleColor": INK}
# The page's style names these colours, so that a plot inside it follows light and dark.
STYLED = {INK: "var(--ink)", SOFT: "var(--soft)", LINE: "var(--line)", PAPER: "none"}
PLACES = re.compile(r' (?:d|transform)="[^"<>]*"')
# Groups of marks have a path before and after them, to be pointed at; neither is ever seen.
UNSEEN = re.compile(r'<path class="(?:back|fore)ground"(?![^<>]* (?:fill|stroke)=)[^<>]*/>')
DECIMALS = re.compile(r"(\.\d)\d+")
SIZES = {"labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal"}
LIGHT = {
    "background": PAPER,
    "font": "sans-serif",
    "aria": False,  # the chart has one description; one for each mark would be most of the file
    "axis": {**LABEL_COLOURS, **SIZES, "domainColor": SOFT, "tickColor": SOFT, "gridColor": LINE},
    "header": {
        **LABEL_COLOURS,
        "labelFontSize": 12,
        "labelAnchor": "start",
        "labelFontWeight": "bold",
    },
    "text": {"color": INK},
    "view": {"stroke": None},
    # Fonts may be wider than assumed: leave room for the widest.
    "padding": {"left": 36, "right": 12, "top": 8, "bottom": 8},
    "legend": {**LABEL_COLOURS, "columnPadding": 30},
}


def draw_request(report: Report, out: Path) -> DrawRequest:
    """Every chart as a file of this folder. Plots of an earlier report are removed."""
    for old in out.glob("plot-*.svg"):
        if old.is_file():
            old.unlink()
    return DrawRequest(
        str(out), {plot_name(chart): _spec(chart, report) for chart in report.charts}
    )


def plot_name(chart: Chart) -> str:
    return f"plot-{chart.name}.svg"


def plot_inside(chart: Chart, out: Path) -> str:
    """A written plot for use inside the page: with the page's colours and font, and smaller. Empty
    for one that could not be drawn."""
    path = out / plot_name(chart)
    if not path.is_file():
        return ""
    svg = path.read_text(encoding="utf-8")
    for colour, style in STYLED.items():
        svg = re.sub(rf'(fill|stroke)="{colour}"', rf'\1="{style}"', svg)
    for default in (' font-family="sans-serif"', ' opacity="1"', ' stroke-width="0"'):
        svg = svg.replace(default, "")
    svg = UNSEEN.sub("", svg)
    svg = PLACES.sub(lambda match: DECIMALS.sub(r"\1", match[0]), svg)
    return svg[svg.index("<svg") :]


def _spec(chart: Chart, report: Report) -> str:
    """Shows the records of one setup, because a plot cannot be filtered. It cannot be scrolled
    either, so a grid leaves out scenarios that are points of a curve in another plot, and all
    scenarios beyond COLUMNS_A_PANEL."""
    data = [record.content() for record in drawn_records(chart, report)]
    if chart.name in GRIDS:
        lines = {point.scenario for point in report.sets.batches + report.sets.contexts}
        drawn_scenarios = [
            n for n in report.names.scenarios if any(r["scenario"] == n for r in data)
        ]
        names = [name for name in drawn_scenarios if name not in lines] or drawn_scenarios
        names = names[:COLUMNS_A_PANEL]
        data = [record for record in data if record["scenario"] in names]
    drawn = {record.get("candidate") for record in data}
    spec = with_legend(chart.spec, [name for name in report.names.candidates if name in drawn])
    if chart.name in GRIDS:
        columns = len({record["scenario"] for record in data})
        spec["spec"] |= {"width": COLUMN * columns}
        spec["params"] = grid_params(1, columns)
    texts = {
        workload.name: workload_text(workload.settings)
        for group in report.groups
        for workload in group.workloads
    }
    data = [record | {"load": texts.get(str(record.get("scenario")), "")} for record in data]
    content = spec | {"datasets": {chart.data: data}, "config": LIGHT}
    return json.dumps(content, allow_nan=False)


def drawn_records(chart: Chart, report: Report) -> list[Record]:
    """The records of the first setup that has any."""
    records = [r for r in report.sets.by_name()[chart.data] if chart.draws(r)]
    return [record for record in records if record.plotted_with == records[0].plotted_with]
