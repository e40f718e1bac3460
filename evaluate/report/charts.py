"""The charts, as Vega-Lite: one description serves the page and the plots beside the Markdown."""

from evaluate.report import side_charts, speed_charts
from evaluate.report.drawing import (
    BATCHES,
    CAPACITY,
    CELLS,
    CONTEXTS,
    ENGINES,
    KERNELS,
    LIMITS,
    PROFILES,
    SENSITIVITY,
    SWEEP,
    Chart,
    Names,
)
from evaluate.report.records import Record


def charts(sets: dict[str, list[Record]], names: Names) -> list[Chart]:
    """Every chart that the records have something for."""
    cells = sets[CELLS]
    found = []
    if any(record["speedup"] is not None for record in cells):
        found.append(speed_charts.overview(names))
    if any(r["recovery"] is not None and r["verdict"] != "the original" for r in cells):
        found.append(speed_charts.frontier(names))
    if sets[BATCHES]:
        found.append(speed_charts.batches(names))
    if sets[KERNELS]:
        found.append(speed_charts.kernels())
    if sets[CONTEXTS]:
        found.append(speed_charts.contexts(names))
    if sets[LIMITS]:
        found.append(speed_charts.limits(names))
    if sets[CAPACITY]:
        found.append(side_charts.capacity(names))
    if sets[ENGINES]:
        found.append(side_charts.engines(names))
    if sets[PROFILES]:
        found.append(side_charts.profiles())
    if sets[SENSITIVITY]:
        found.append(side_charts.sensitivity())
    if sets[SWEEP]:
        found.append(side_charts.published(names))
    return found
