"""Builds the content of report.json from a report."""

import math
from collections.abc import Mapping

from conf import VERSION as QUANTLINE
from conf.models import ORIGINAL
from conf.schema.report import ReportConfig, changed_options
from evaluate.report.contents import Report
from evaluate.report.decide.capacity import CapacityCell
from evaluate.report.decide.commands import missing_of, rows_of, serve_commands
from evaluate.report.decide.comparison import Entry, Workload
from evaluate.report.decide.costs import Cost
from evaluate.report.decide.decision import Answer
from evaluate.report.decide.memory import need_gib
from evaluate.report.decide.mix import shares_of
from evaluate.report.decide.quality import Qualities
from evaluate.report.decide.recommend import Choice
from evaluate.report.decide.rules.facts import Limits, SetupFacts, Shares
from evaluate.report.decide.rules.make_facts import entry_facts
from evaluate.report.decide.rules.pick import pick
from evaluate.report.decide.rules.prices import Prices, TokenCost, counted, entry_cost, mix_cost
from evaluate.report.machine import schema
from evaluate.results.rows import Row
from evaluate.results.significance import Ratio

NOT_JUDGED = "not judged"


def report_file(report: Report) -> schema.ReportFile:
    return schema.ReportFile(
        schema_version=schema.VERSION,
        quantline=QUANTLINE,
        results=report.config.results,
        options=changed_options(report.config),
        setups=[setup_answer(report.config, report.qualities, answer) for answer in report.answers],
        notes=report.notes,
        faults=report.faults,
    )


def setup_answer(config: ReportConfig, qualities: Qualities, answer: Answer) -> schema.SetupAnswer:
    group, mix = answer.group, config.mix
    shares, unmeasured = shares_of(group, mix) if group.workloads else ({}, [])
    missing = missing_of(group, answer.facts, mix, config.results[-1])
    checkpoints = _checkpoints(config, qualities, answer, {} if unmeasured else shares)
    searched = _capacity_answers(answer)
    overall_costs = {one.name: one.mix_costs for one in checkpoints}
    if not group.workloads:  # the first search is the answer
        overall_costs = {one.serve: one.costs for one in searched[:1] if one.serve}
    return schema.SetupAnswer(
        setup=schema.Setup(group.model, group.device, group.engine_title, group.title),
        answer=recommendation(answer.overall, overall_costs),
        serve_commands=chosen_commands(answer),
        capacity_answers=searched,
        checkpoints=checkpoints,
        scenarios=[
            _scenario(config, answer, workload, shares.get(workload.name, 0.0))
            for workload in group.workloads
        ],
        capacities=[
            _capacity(table.title, cell) for table in answer.capacities for cell in table.cells
        ],
        missing=[schema.Missing(one.what, one.command) for one in missing],
    )


def chosen_commands(answer: Answer) -> list[str]:
    """The commands that serve what an answer recommends; none where it recommends nothing."""
    chosen = answer.overall.candidate
    return serve_commands(candidate_rows(answer)[chosen]) if chosen else []


def candidate_rows(answer: Answer) -> dict[str, Row]:
    """The first row of each candidate, of trials, too."""
    rows = rows_of(answer.group)
    for table in answer.capacities:
        for cell in table.cells:
            rows.setdefault(cell.candidate, cell.row)
    return rows


def _scenario(
    config: ReportConfig, answer: Answer, workload: Workload, share: float
) -> schema.Scenario:
    choice = next(one for one in answer.workloads if one.workload == workload.name)
    ranks = [_rank(config, answer.facts, entry) for entry in workload.entries]
    costs = {rank.checkpoint: rank.costs for rank in ranks}
    return schema.Scenario(workload.name, share, recommendation(choice, costs), ranks)


def _capacity_answers(answer: Answer) -> list[schema.Recommendation]:
    """The choices of the capacity searches, which follow those of the workloads."""
    choices = answer.workloads[len(answer.group.workloads) :]
    return [
        recommendation(choice, {cell.candidate: _capacity_costs(cell.cost) for cell in table.cells})
        for choice, table in zip(choices, answer.capacities, strict=True)
    ]


def recommendation(
    choice: Choice, costs: Mapping[str, schema.Costs | None]
) -> schema.Recommendation:
    """A choice, with what it serves at these costs of the candidates."""
    return schema.Recommendation(
        scenario=choice.workload,
        serve=choice.candidate,
        accuracy_judged=choice.candidate is not None and not choice.unjudged,
        reason=choice.why,
        speed_up=_speed_up(choice.ratio),
        level_with=choice.tied,
        next=choice.second or None,
        would_change=choice.changes,
        excluded=[schema.Excluded(one.candidate, one.reasons) for one in choice.refused],
        costs=costs.get(choice.candidate) if choice.candidate else None,
    )


def _speed_up(ratio: Ratio | None) -> schema.SpeedUp | None:
    if ratio is None:
        return None
    high = ratio.high if math.isfinite(ratio.high) else None
    return schema.SpeedUp(ratio.ratio, ratio.low, high, ratio.differs)


def _accuracy(row: Row, qualities: Qualities) -> schema.Accuracy:
    quality = qualities.of_row(row)
    if quality is None:
        return schema.Accuracy(NOT_JUDGED)
    recovery = None
    if quality.recovery is not None:
        recovery = schema.Interval(quality.recovery, quality.low, quality.high)
    return schema.Accuracy(quality.verdict, recovery, quality.measure, quality.other_kernels)


def prices_of(config: ReportConfig, facts: SetupFacts) -> Prices:
    prices = Prices(config.gpu.price_per_hour, config.gpu.energy_price_per_kwh)
    return counted(prices, facts.energy)


def _costs(config: ReportConfig, outputs: TokenCost, inputs: TokenCost) -> schema.Costs | None:
    known = (outputs.money, inputs.money, outputs.joules, inputs.joules)
    if known == (None, None, None, None):
        return None
    return schema.Costs(config.gpu.currency, *known)


def _checkpoints(
    config: ReportConfig, qualities: Qualities, answer: Answer, shares: Shares
) -> list[schema.Checkpoint]:
    facts, rows = answer.facts, candidate_rows(answer)
    workloads = [workload for workload in facts.workloads if workload.name in shares]
    reference = _reference(facts, shares)
    checkpoints = []
    for place, candidate in enumerate(facts.candidates):
        costs = None
        if workloads and reference is not None:
            prices = prices_of(config, facts)
            outputs, inputs = (
                mix_cost(workloads, shares, place, reference, prices, is_input)
                for is_input in (False, True)
            )
            costs = _costs(config, outputs, inputs)
        row = rows[candidate.name]
        accuracy = _accuracy(row, qualities)
        checkpoints.append(schema.Checkpoint(candidate.name, row.checkpoint, accuracy, costs))
    return checkpoints


def _reference(facts: SetupFacts, shares: Shares) -> int | None:
    """The original whose tokens a mix counts: the fastest, as on the page."""
    fastest = pick(facts, shares, Limits()).reference
    originals = (place for place, one in enumerate(facts.candidates) if one.original)
    return next(originals, None) if fastest is None else fastest


def _rank(config: ReportConfig, setup: SetupFacts, entry: Entry) -> schema.Rank:
    facts, latency = entry_facts(entry), entry.cell.summary(entry.cell.ranked_by)
    prices = prices_of(config, setup)
    outputs, inputs = entry_cost(facts, prices), entry_cost(facts, prices, is_input=True)
    return schema.Rank(
        checkpoint=entry.candidate,
        rank=entry.rank,
        tied=entry.tied,
        runs=len(entry.cell.valid),
        speed_up=None if entry.checkpoint == ORIGINAL else _speed_up(entry.ratio),
        latency_s=schema.Interval(latency.median, latency.low, latency.high) if latency else None,
        ttft_ms=facts.ttft_ms,
        tpot_ms=facts.tpot_ms,
        output_tokens_per_s=facts.tokens_s,
        memory_gib=need_gib(entry),
        costs=_costs(config, outputs, inputs),
    )


def _capacity(title: str, cell: CapacityCell) -> schema.Capacity:
    low, high = cell.interval
    users = cell.users(cell.rate)
    settings, limited = cell.row.settings, cell.limited_by
    return schema.Capacity(
        scenario=title,
        checkpoint=cell.candidate,
        requests_per_s=schema.Interval(cell.rate, low, high),
        speed_up=_speed_up(cell.ratio),
        users=users,
        costs=_capacity_costs(cell.cost),
        users_interval=None
        if users is None
        else schema.Interval(users, cell.users(low), cell.users(high)),
        targets=schema.CapacityTargets(
            settings.ttft_ms,
            settings.tpot_ms,
            settings.capacity.share,
            settings.traffic.source or "",
            settings.traffic.sha256 or "",
        ),
        limited_by=schema.LimitedBy(limited.ttft, limited.tpot, limited.failed)
        if limited
        else None,
    )


def _capacity_costs(cost: Cost | None) -> schema.Costs | None:
    if cost is None:
        return None
    return schema.Costs(
        cost.currency,
        cost.per_million_output,
        cost.per_million_input,
        cost.joules_per_million_output,
        cost.joules_per_million_input,
    )
