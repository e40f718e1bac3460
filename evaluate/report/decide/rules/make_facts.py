"""Makes the facts of a comparison group from its entries."""

import math
from collections.abc import Sequence
from itertools import combinations

from conf.models import ORIGINAL
from conf.schema.load import gpus_of
from conf.schema.report import TargetsConfig
from evaluate.report.decide.capacity import CapacityCell, CapacityTable
from evaluate.report.decide.comparison import ComparisonGroup, Entry, Workload
from evaluate.report.decide.costs import INPUT, OUTPUT, has_energy, joules_per_token, per_request
from evaluate.report.decide.memory import need_gib
from evaluate.report.decide.quality import Qualities, Quality
from evaluate.report.decide.rules.facts import (
    CandidateFacts,
    EntryFacts,
    Limits,
    RateFacts,
    SearchFacts,
    SetupFacts,
    TrialFacts,
    WorkloadFacts,
    rounded,
)
from evaluate.results.late_requests import allowed_misses
from evaluate.results.restart_noise import Noise, ran_on_two_machines
from evaluate.results.rows import Row
from evaluate.results.significance import compare

TTFT = ("ttft_p99_s", "ttft_last_s")
TPOT = "tpot_median_s"
MILLI = 1e3


def setup_facts(
    group: ComparisonGroup, qualities: Qualities, tables: Sequence[CapacityTable] = ()
) -> SetupFacts:
    """The facts of all candidates, workloads and capacity searches of a group."""
    rows: dict[str, Row] = {}
    for workload in group.workloads:
        for entry in workload.entries:
            rows.setdefault(entry.candidate, entry.row)
    for table in tables:
        for cell in table.cells:
            rows.setdefault(cell.candidate, cell.row)
    # Second sessions of a search have names of their own, which no other workload knows.
    names = dict.fromkeys([*group.candidates, *rows])
    places = {name: place for place, name in enumerate(name for name in names if name in rows)}
    return SetupFacts(
        candidates=[candidate_facts(n, rows[n], qualities.of_row(rows[n])) for n in places],
        workloads=[_workload_facts(one, places, group.noise) for one in group.workloads],
        searches=[
            SearchFacts(
                table.title,
                ", ".join(table.settings),
                [_rate_facts(cell, table, places) for cell in table.cells],
                ttft_ms=table.cells[0].row.settings.ttft_ms or 0.0,
                tpot_ms=table.cells[0].row.settings.tpot_ms or 0.0,
                noise=rounded(table.between_rates) or 1.0,
            )
            for table in tables
        ],
        energy=has_energy(group.rows),
    )


def limits_of(targets: TargetsConfig) -> Limits:
    return Limits(**vars(targets))


def candidate_facts(name: str, row: Row, quality: Quality | None) -> CandidateFacts:
    return CandidateFacts(
        name=name,
        weights=f"{row.checkpoint} {row.environment.checkpoint_sha256 or ''}",
        original=row.checkpoint == ORIGINAL,
        judged=quality is not None,
        recovery=rounded(quality.recovery) if quality else None,
        verdict=quality.verdict if quality else "",
        pruned=bool(row.environment.pruned),
    )


def entry_facts(entry: Entry, place: int = 0) -> EntryFacts:
    cell = entry.cell
    sample = cell.sample(cell.ranked_by)
    ttft = next((value for name in TTFT if (value := entry.median(name)) is not None), None)
    tpot, tokens_s = entry.median(TPOT), entry.median("generated_tokens_per_s")
    inputs, outputs = entry.median(INPUT), entry.median(OUTPUT)
    median = rounded(entry.median(cell.ranked_by))
    return EntryFacts(
        candidate=place,
        time=None if sample is None else rounded(math.exp(sample.mean)),
        median=median or 0.0,
        ttft_ms=None if ttft is None else rounded(ttft * MILLI),
        tpot_ms=None if tpot is None else rounded(tpot * MILLI),
        memory_gib=rounded(need_gib(entry)),
        tokens_s=rounded(tokens_s / gpus_of(entry.row.environment.engine_options))
        if tokens_s
        else None,
        joules=rounded(entry.median("joules_per_output_token")),
        inputs_per_output=rounded(inputs / outputs) if inputs and outputs else None,
    )


def _workload_facts(workload: Workload, places: dict[str, int], noise: Noise) -> WorkloadFacts:
    facts = WorkloadFacts(workload.name, workload.settings.output_tokens != 1, [], [], [])
    ranked = [entry for entry in workload.entries if entry.rank is not None]
    ranked.sort(key=lambda entry: places[entry.candidate])
    facts.entries.extend(entry_facts(entry, places[entry.candidate]) for entry in ranked)
    facts.factors.extend(_factors(workload, ranked, noise))
    unranked = [places[entry.candidate] for entry in workload.entries if entry.rank is None]
    facts.unranked.extend(sorted(unranked))
    return facts


def _factors(workload: Workload, ranked: list[Entry], noise: Noise) -> list[float | None]:
    own_noise = noise.of(workload.name)
    samples = [entry.cell.sample(entry.cell.ranked_by) for entry in ranked]
    factors: list[float | None] = []
    for (one, sample), (other, others) in combinations(zip(ranked, samples, strict=True), 2):
        ratio = None
        if sample is not None and others is not None:
            apart = ran_on_two_machines(one.cell, other.cell)
            ratio = compare(sample, others, own_noise, apart)
        factors.append(rounded(math.sqrt(ratio.high / ratio.low)) if ratio else None)
    return factors


def _rate_facts(cell: CapacityCell, table: CapacityTable, places: dict[str, int]) -> RateFacts:
    low, high = cell.interval
    ratios = [(other, table.ratio(cell, other)) for other in table.cells]
    return RateFacts(
        candidate=places[cell.candidate],
        rate=rounded(cell.rate) or 0.0,
        low=rounded(low) or 0.0,
        high=rounded(high) or 0.0,
        above=[places[other.candidate] for other, ratio in ratios if ratio and ratio.low > 1],
        input_tokens=rounded(per_request(cell.best, INPUT)) or 0.0,
        output_tokens=rounded(per_request(cell.best, OUTPUT)) or 0.0,
        joules_input=rounded(joules_per_token(cell.best, INPUT)),
        joules_output=rounded(joules_per_token(cell.best, OUTPUT)),
        trials=_trial_facts(cell),
    )


def _trial_facts(cell: CapacityCell) -> list[TrialFacts]:
    """The trials of the searches and of their curves. None where a row lacks the slowest requests.
    A search repeats a trial that meets its targets and was too short, so of trials that missed
    them, it is not known whether they were long enough. Those of the curve are."""
    trials = []
    for row in cell.rows:
        if row.requests.slowest_s is None:
            return []
        settings, trial = row.settings, row.trial
        trials.append(
            TrialFacts(
                rate=rounded(settings.rate / cell.gpus) or 0.0,
                allowed=allowed_misses(settings.requests or 0, settings.capacity.share),
                failed=int(row.values.failed_requests or 0),
                whole=not row.values.cut_off_requests and (trial.meets or trial.of_curve),
                slowest=[
                    (rounded(ttft * MILLI) or 0.0, rounded(tpot * MILLI) or 0.0)
                    for ttft, tpot in row.requests.slowest_s
                ],
            )
        )
    return trials
