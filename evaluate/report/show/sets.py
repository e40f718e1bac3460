"""Everything that a report shows, as plain records, by what they are records of."""

from dataclasses import dataclass

from evaluate.report.decide.comparable import Ground
from evaluate.report.decide.kernels import kernel_records
from evaluate.report.decide.quality import Qualities
from evaluate.report.show.beside import engine_records, sweep_records
from evaluate.report.show.records import (
    Record,
    batch_records,
    capacity_records,
    cell_records,
    context_records,
    limit_records,
    operator_records,
    profile_records,
    sensitivity_records,
)
from evaluate.results.rows import Row


@dataclass
class Sets:
    """Charts name the set that they draw; the page carries all of them."""

    cells: list[Record]
    batches: list[Record]
    kernels: list[Record]
    contexts: list[Record]
    capacity: list[Record]
    limits: list[Record]
    sweep: list[Record]
    engines: list[Record]
    profiles: list[Record]
    operators: list[Record]
    sensitivity: list[Record]

    def of(self, name: str) -> list[Record]:
        records: list[Record] = getattr(self, name)
        return records


def make_sets(found: list[Ground], judged: Qualities, rows: list[Row]) -> Sets:
    return Sets(
        cells=[record for ground in found for record in cell_records(ground, judged)],
        batches=[record for ground in found for record in batch_records(ground)],
        kernels=[record for ground in found for record in kernel_records(ground)],
        contexts=[record for ground in found for record in context_records(ground)],
        capacity=[record for ground in found for record in capacity_records(ground)],
        limits=[record for ground in found for record in limit_records(ground)],
        sweep=[record for ground in found for record in sweep_records(ground)],
        engines=engine_records(found),
        profiles=profile_records(rows),
        operators=operator_records(rows),
        sensitivity=sensitivity_records(rows),
    )
