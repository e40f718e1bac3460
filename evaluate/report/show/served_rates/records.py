"""The records of capacity searches: one for each candidate, and one for each trial."""

from dataclasses import dataclass

from evaluate.report.decide.capacity import CapacityCell, CapacityTable
from evaluate.report.decide.comparison import ComparisonGroup
from evaluate.report.decide.workload_text import targets_phrases
from evaluate.report.show.records import GroupRecord, MedianWithInterval, Speedup
from evaluate.results.rows import TrialRow

MILLI = 1e3


@dataclass(kw_only=True)
class RateRecord(GroupRecord):
    """The capacity of one candidate, for each GPU."""

    scenario: str
    title: str
    """The scenario, with what distinguishes this search from others of it."""
    traffic: str
    candidate: str
    requests_s: MedianWithInterval
    users: MedianWithInterval | None
    output_tok_s: float | None
    user_tok_s: float | None
    ttft_p99_ms: float | None
    tpot_p99_ms: float | None
    limited_by: str
    """What most late or failed requests missed just above the capacity; empty if not known."""
    limited_share: float | None
    """Their share of the requests that were late or failed."""
    server_share: float | None
    hit_share: float | None
    speedup: Speedup
    searches: int
    trials: int
    currency: str
    cost_input: float | None
    cost_output: float | None
    joules_input: float | None
    joules_output: float | None


def rate_records(group: ComparisonGroup, tables: list[CapacityTable]) -> list[RateRecord]:
    return [_rate_record(group, table, cell) for table in tables for cell in table.cells]


def _rate_record(group: ComparisonGroup, table: CapacityTable, cell: CapacityCell) -> RateRecord:
    gpus, cost = cell.gpus, cell.cost
    low, high = cell.interval
    users = cell.users(cell.rate)
    pace, ttft = cell.at_best("tpot_median_s"), cell.at_best("ttft_p99_s")
    tpot = cell.at_best("tpot_p99_s")
    output, hits = cell.at_best("steady_tokens_per_s"), cell.at_best("prefix_hits")
    inputs = cell.at_best("input_tokens")
    limited = cell.limited_by
    return RateRecord(
        group=group.title,
        scenario=cell.measure,
        title=table.title,
        traffic=", ".join(targets_phrases(cell.row.settings)),
        candidate=cell.candidate,
        requests_s=MedianWithInterval(cell.rate, low, high),
        users=None
        if users is None
        else MedianWithInterval(users, cell.users(low), cell.users(high)),
        output_tok_s=None if output is None else output / gpus,
        user_tok_s=1 / pace if pace else None,
        ttft_p99_ms=None if ttft is None else ttft * MILLI,
        tpot_p99_ms=None if tpot is None else tpot * MILLI,
        limited_by=limited.most.value if limited else "",
        limited_share=limited.most_share if limited else None,
        server_share=cell.at_best("server_cpu_share"),
        hit_share=hits / inputs if hits is not None and inputs else None,
        speedup=Speedup.of(cell.ratio),
        searches=len(cell.ends),
        trials=len(cell.rows),
        currency=cost.currency if cost else "",
        cost_input=cost.per_million_input if cost else None,
        cost_output=cost.per_million_output if cost else None,
        joules_input=cost.joules_per_million_input if cost else None,
        joules_output=cost.joules_per_million_output if cost else None,
    )


@dataclass(kw_only=True)
class TrialRecord(GroupRecord):
    """One trial: what all users get together, against what each of them gets."""

    scenario: str
    candidate: str
    rate: float
    meets: str
    user_tok_s: float
    gpu_tok_s: float
    is_best: bool
    """Whether no trial of any candidate has more of both (the Pareto front)."""


def trial_records(group: ComparisonGroup, tables: list[CapacityTable]) -> list[TrialRecord]:
    """The trials that were not cut off; of a saturated one, the figures would depend on when."""
    return [record for table in tables for record in _trials_of(group, table)]


def _trials_of(group: ComparisonGroup, table: CapacityTable) -> list[TrialRecord]:
    records = [
        TrialRecord(
            group=group.title,
            scenario=cell.measure,
            candidate=cell.candidate,
            rate=row.settings.rate / cell.gpus,
            meets="yes" if row.trial.meets else "no",
            user_tok_s=1 / row.values.tpot_median_s,
            gpu_tok_s=row.values.steady_tokens_per_s / cell.gpus,
            is_best=False,
        )
        for cell in table.cells
        for row in cell.rows
        if _is_whole(row) and row.values.tpot_median_s and row.values.steady_tokens_per_s
    ]
    highest = 0.0
    for record in sorted(records, key=lambda r: (-r.user_tok_s, -r.gpu_tok_s)):
        if record.gpu_tok_s > highest:
            record.is_best, highest = True, record.gpu_tok_s
    return records


def _is_whole(row: TrialRow) -> bool:
    return not row.values.cut_off_requests
