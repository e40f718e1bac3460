"""All records of a report, by kind."""

from collections.abc import Sequence
from dataclasses import dataclass

from evaluate.report.decide.curves import BATCH, CONTEXT
from evaluate.report.decide.decision import Answer
from evaluate.report.decide.quality import Qualities
from evaluate.report.show.kernels.records import GridRecord, grid_records
from evaluate.report.show.our_kernels.records import (
    BandRecord,
    GainRecord,
    LayerRecord,
    band_records,
    gain_records,
    layer_records,
)
from evaluate.report.show.published_records import (
    EngineRecord,
    SweepRecord,
    engine_records,
    sweep_records,
)
from evaluate.report.show.records import (
    CapacityRecord,
    CellRecord,
    CurveRecord,
    KernelRecord,
    LimitRecord,
    Record,
    capacity_records,
    cell_records,
    curve_records,
    kernel_records,
    limit_records,
)
from evaluate.report.show.row_records import (
    OperatorRecord,
    ProfileRecord,
    SensitivityRecord,
    operator_records,
    profile_records,
    sensitivity_records,
)
from evaluate.report.show.served_loads.records import (
    BatchPointRecord,
    PercentileRecord,
    TimelineRecord,
    batch_point_records,
    percentile_records,
    timeline_records,
)
from evaluate.report.show.served_rates.records import (
    RateRecord,
    TrialRecord,
    rate_records,
    trial_records,
)
from evaluate.results.rows import Row


@dataclass
class RecordSets:
    """All sets of records. A chart names the set that it draws; the page contains all sets."""

    cells: list[CellRecord]
    batches: list[CurveRecord]
    kernels: list[KernelRecord]
    gains: list[GainRecord]
    bands: list[BandRecord]
    layers: list[LayerRecord]
    contexts: list[CurveRecord]
    capacity: list[CapacityRecord]
    limits: list[LimitRecord]
    sweep: list[SweepRecord]
    engines: list[EngineRecord]
    profiles: list[ProfileRecord]
    operators: list[OperatorRecord]
    sensitivity: list[SensitivityRecord]
    kernel_grid: list[GridRecord]
    rates: list[RateRecord]
    trials: list[TrialRecord]
    percentiles: list[PercentileRecord]
    timelines: list[TimelineRecord]
    batch_points: list[BatchPointRecord]

    def by_name(self) -> dict[str, Sequence[Record]]:
        return vars(self)


def make_sets(answers: list[Answer], qualities: Qualities, rows: Sequence[Row]) -> RecordSets:
    groups = [answer.group for answer in answers]
    return RecordSets(
        cells=[record for group in groups for record in cell_records(group, qualities)],
        batches=[record for group in groups for record in curve_records(group, BATCH)],
        kernels=[record for group in groups for record in kernel_records(group)],
        gains=[record for group in groups for record in gain_records(group)],
        bands=[record for group in groups for record in band_records(group)],
        layers=[record for group in groups for record in layer_records(group)],
        contexts=[record for group in groups for record in curve_records(group, CONTEXT)],
        capacity=[record for group in groups for record in capacity_records(group)],
        limits=[record for group in groups for record in limit_records(group)],
        sweep=[record for group in groups for record in sweep_records(group)],
        engines=engine_records(groups),
        profiles=profile_records(rows),
        operators=operator_records(rows),
        sensitivity=sensitivity_records(rows),
        kernel_grid=grid_records(rows),
        rates=[r for a in answers for r in rate_records(a.group, a.capacities)],
        trials=[r for a in answers for r in trial_records(a.group, a.capacities)],
        percentiles=[r for a in answers for r in percentile_records(a.group, a.capacities)],
        timelines=[r for a in answers for r in timeline_records(a.group, a.capacities)],
        batch_points=[record for group in groups for record in batch_point_records(group)],
    )
