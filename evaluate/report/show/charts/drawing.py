"""Common parts of all charts: colours, sizes, tooltips, and descriptions for screen readers."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import altair
from pydantic import JsonValue

from conf.files.json_files import JsonObject
from evaluate.report.show.records import Record

CELLS, BATCHES, CONTEXTS, CAPACITY = "cells", "batches", "contexts", "capacity"
KERNELS, LIMITS, PROFILES = "kernels", "limits", "profiles"
SENSITIVITY = "sensitivity"
KERNEL_GRID = "kernel_grid"
GAINS, BANDS = "gains", "bands"
RATES, TRIALS = "rates", "trials"
TIMELINES, BATCH_POINTS = "timelines", "batch_points"
SWEEP, ENGINES, OPERATORS = "sweep", "engines", "operators"
# Widths are those of the plots of report.md; the page sets its own (page_files/charts.js).
WIDTH = 760
ROW = 26
COLUMN = 58
SMALL = 200
COLUMNS_A_PANEL = 16  # a grid with more scenarios than this goes on in a panel below
PANELS_A_PHASE = 1000
# Colours that the colour-blind can distinguish, on white and on dark (after Okabe and Ito).
COLOURS = (
    *("#888888", "#0a84c8", "#e08600", "#009e73", "#d15a9b", "#9a6bd6", "#c04a1a", "#56b4e9"),
    *("#8a8a00", "#006b5e", "#a05a2c", "#5f7fbf", "#b03060", "#4f9d2f", "#7a5195", "#d0a000"),
)
DASHES = ([1, 0], [6, 3], [2, 2])
LABELS = 260  # pixels of a name; the page shows the rest on hover
GAP = altair.Scale(paddingInner=0.04, paddingOuter=0)
EVEN_LUMINANCE = 0.179  # black and white text have the same contrast on it
SPEED_TIPS = (
    ("candidate:N", "checkpoint", ""),
    ("scenario:N", "scenario", ""),
    ("load:N", "load", ""),
    ("speedup:Q", "times as fast", ".3f"),
    ("speedup_low:Q", "at least", ".3f"),
    ("speedup_high:Q", "at most", ".3f"),
)


@dataclass
class Chart:
    """One chart, with a description for screen readers."""

    name: str
    title: str
    description: str
    data: str
    """The set of records it draws."""
    spec: JsonObject
    """For Vega-Lite."""
    value: str = ""
    """The field that a record must have to be drawn; empty for none."""

    def draws(self, record: Record) -> bool:
        return not self.value or record.content().get(self.value) is not None


@dataclass
class Names:
    """The order of names in all charts, so that colours and places are the same everywhere."""

    candidates: list[str]
    scenarios: list[str]
    shown: list[str] = field(default_factory=list)
    """The candidates that a chart's legend names."""

    def of(self, records: Sequence[Record]) -> "Names":
        """The names for a chart of these records."""
        drawn = {record.content().get("candidate") for record in records}
        return replace(self, shown=[name for name in self.candidates if name in drawn])

    @property
    def colour(self) -> altair.Color:
        palette = [COLOURS[place % len(COLOURS)] for place in range(len(self.candidates))]
        return altair.Color(
            "candidate:N",
            title=None,
            scale=altair.Scale(domain=self.candidates, range=palette),
            legend=self._legend,
        )

    @property
    def _legend(self) -> altair.Legend:
        return bottom(
            columns=3, labelLimit=LABELS, symbolType="circle", symbolOpacity=1, values=self.shown
        )

    @property
    def dash(self) -> altair.StrokeDash:
        """Dashes of lines, which differ when colours repeat."""
        dashes = [DASHES[place // len(COLOURS) % len(DASHES)] for place in range(len(self))]
        scale = altair.Scale(domain=self.candidates, range=dashes)
        return altair.StrokeDash("candidate:N", title=None, scale=scale, legend=self._legend)

    def __len__(self) -> int:
        return len(self.candidates)

    @property
    def rows(self) -> altair.Y:
        axis = altair.Axis(labelLimit=LABELS)
        return altair.Y("candidate:N", title=None, sort=self.candidates, axis=axis)

    @property
    def tile_rows(self) -> altair.Y:
        axis = altair.Axis(labelLimit=LABELS)
        order = altair.EncodingSortField("row", op="min")
        return altair.Y("candidate:N", title=None, sort=order, axis=axis, scale=GAP)

    @property
    def tile_columns(self) -> altair.X:
        axis = altair.Axis(labelAngle=-30, labelLimit=LABELS)
        order = altair.EncodingSortField("column", op="min")
        return altair.X("scenario:N", title=None, sort=order, axis=axis, scale=GAP)

    def grid(
        self, tiles: altair.LayerChart, value: str, phases: tuple[str, ...] = (), **fields: str
    ) -> Any:
        """Tiles of scenarios and candidates. A grid that is too wide continues in panels below.
        `gridPanels` is the number of panels, `gridColumns` the number of all columns. `fields` are
        computed for each tile."""
        phase = f"max(0, indexof({json.dumps(phases)}, datum.phase))" if phases else "0"
        title = f"datum.value % {PANELS_A_PHASE} == 0 ? {json.dumps(phases or [''])}"
        title += f"[datum.value / {PANELS_A_PHASE}] : ''"
        header = altair.Header(labelExpr=title, labels=bool(phases))
        return (
            tiles.facet(altair.Facet("panel:O", title=None, header=header), columns=1, spacing=14)
            .resolve_scale(x="independent")
            .resolve_axis(y="independent")
            .transform_filter(f"isValid(datum.{value})")
            .transform_calculate(
                row=f"indexof({json.dumps(self.candidates)}, datum.candidate)",
                column=f"indexof({json.dumps(self.scenarios)}, datum.scenario)",
            )
            .transform_window(place="dense_rank()", sort=[altair.SortField("column")])
            .transform_calculate(
                **fields,
                panel=f"{phase} * {PANELS_A_PHASE} + "
                "floor((datum.place - 1) * gridPanels / gridColumns)",
            )
        )


def bottom(**settings: Any) -> altair.Legend:
    return altair.Legend(orient="bottom", **settings)


def records(name: str) -> altair.Chart:
    """A chart of a named set, which the page filters before it is drawn."""
    return altair.Chart(altair.NamedData(name=name))


def panels(chart: Any, field: str, columns: int = 1, sort: list[str] | None = None) -> Any:
    """A panel for each value of a field, with its title above."""
    facet = altair.Facet(f"{field}:N", title=None, sort=sort or altair.Undefined)
    return chart.facet(facet, columns=columns, spacing=24)


def text_on(scale: str, value: str) -> Any:
    """Black or white text, whichever has the higher contrast with the tile. That is always at
    least 4.5."""
    dark = f"luminance(scale('{scale}', datum.{value})) < {EVEN_LUMINANCE}"
    return altair.condition(dark, altair.value("#ffffff"), altair.value("#000000"))


def with_legend(spec: Any, candidates: list[str]) -> Any:
    """The same spec, with only these candidates in the legend."""
    if isinstance(spec, list):
        return [with_legend(item, candidates) for item in spec]
    if not isinstance(spec, dict):
        return spec
    copied = {key: with_legend(value, candidates) for key, value in spec.items()}
    return (
        copied | {"values": candidates} if "symbolType" in copied and "values" in copied else copied
    )


def grid_params(panels: int, columns: int) -> list[JsonValue]:
    """The parameters of a grid: its number of panels and of columns."""
    return [{"name": "gridPanels", "value": panels}, {"name": "gridColumns", "value": columns}]


def finished(
    name: str, title: str, description: str, data: str, chart: Any, value: str = ""
) -> Chart:
    spec = chart.to_dict(validate=False)
    spec.pop("config", None)
    if "gridPanels" in json.dumps(spec.get("transform", [])):
        spec["params"] = grid_params(1, 1)
    return Chart(name, title, description, data, spec | {"description": description}, value)


def tips(*fields: tuple[str, str, str]) -> list[altair.Tooltip]:
    """Tooltips from the name, title and format of each field."""
    return [
        altair.Tooltip(name, title=title, format=number_format)
        for name, title, number_format in fields
    ]
