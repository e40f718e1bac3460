"""All charts as Vega-Lite. One specification serves the page and the plots of report.md."""

from collections.abc import Callable, Sequence
from functools import partial

from evaluate.report.show.charts import our_kernels_charts, side_charts, speed_charts
from evaluate.report.show.charts.drawing import Chart, Names
from evaluate.report.show.kernels.heat_map import heat_map
from evaluate.report.show.our_kernels.records import widest_products
from evaluate.report.show.record_sets import RecordSets
from evaluate.report.show.records import Record
from evaluate.report.show.served_loads import charts as served_charts
from evaluate.report.show.served_rates.chart import interactivity


def charts(sets: RecordSets, names: Names) -> list[Chart]:
    """Every chart that has something to draw: records of invalid runs have no values."""
    compared = [record for record in sets.cells if record.speedup.ratio is not None]
    judged = [r for r in sets.cells if r.recovery is not None and r.verdict != "the original"]
    makers: list[tuple[Sequence[Record], Callable[[Names], Chart]]] = [
        (compared, speed_charts.overview),
        (judged, speed_charts.frontier),
        (sets.batches, speed_charts.batches),
        (sets.kernels, speed_charts.kernels),
        (sets.gains, our_kernels_charts.gains),
        (sets.bands, partial(our_kernels_charts.hand_overs, widest_products(sets.bands))),
        (sets.contexts, speed_charts.contexts),
        (sets.limits, speed_charts.limits),
        (sets.trials, interactivity),
        (sets.batch_points, served_charts.batch_points),
        (sets.timelines, served_charts.timelines),
        (sets.capacity, side_charts.capacity),
        (sets.engines, side_charts.engines),
        (sets.profiles, side_charts.profiles),
        (sets.sensitivity, side_charts.sensitivity),
        (sets.sweep, side_charts.published),
        (sets.kernel_grid, heat_map),
    ]
    made = [make(names.of(records)) for records, make in makers if records]
    records_of = sets.by_name()
    return [chart for chart in made if any(map(chart.draws, records_of[chart.data]))]
