"""Turns rows into an answer: groups what may be compared, ranks it, and chooses what to serve."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from conf.schema.report import ReportConfig
from evaluate.report.decide.capacity import CapacityTable, capacities
from evaluate.report.decide.cards import with_cards
from evaluate.report.decide.choose_capacity import choose_capacity
from evaluate.report.decide.comparison import ComparisonGroup, comparison_groups
from evaluate.report.decide.mix import choose, choose_mix
from evaluate.report.decide.quality import Qualities, qualities
from evaluate.report.decide.ranking import rank_all
from evaluate.report.decide.recommend import Choice
from evaluate.report.decide.rules.facts import SetupFacts
from evaluate.report.decide.rules.make_facts import setup_facts
from evaluate.results.mix_check import check_mix
from evaluate.results.rows import Row


@dataclass
class Answer:
    """What to serve, for one comparison group."""

    group: ComparisonGroup
    overall: Choice
    """For the mix, or for all workloads with equal shares."""
    workloads: list[Choice]
    """One per workload, and one for each capacity that was searched."""
    facts: SetupFacts
    """What the rule of the recommendation reads."""
    capacities: list[CapacityTable] = field(default_factory=list)
    by_rate: list[Choice] = field(default_factory=list)
    """One for each capacity, if there are other workloads beside it."""


@dataclass
class Decision:
    """All comparison groups with their ranks, and the answer for each."""

    groups: list[ComparisonGroup]
    qualities: Qualities
    answers: list[Answer]


def decide(rows: Sequence[Row], config: ReportConfig) -> Decision:
    groups = comparison_groups(rows)
    rank_all(groups, config.max_spread)
    judged = qualities(rows)
    workloads = [workload for group in groups for workload in group.workloads]
    known_names = {name for workload in workloads for name in (workload.name, workload.measure)}
    if groups:
        check_mix(config.mix, known_names)
    return Decision(groups, judged, [_answer(group, judged, config) for group in groups])


def _answer(group: ComparisonGroup, judged: Qualities, config: ReportConfig) -> Answer:
    tables = capacities(group, config.gpu)
    facts = setup_facts(group, judged, tables)
    by_rate = [
        choose_capacity(table, place, facts, config.targets, judged)
        for place, table in enumerate(tables)
    ]
    choices = [
        with_cards(choose(workload, config.targets, judged, facts), workload, config.gpu)
        for workload in group.workloads
    ]
    if group.workloads:
        overall = choose_mix(group, config.mix, config.targets, judged, facts)
    else:  # trials of searches alone
        overall = by_rate[0] if by_rate else Choice("capacity", None, why="no search has ended")
    beside_others = by_rate if group.workloads else by_rate[1:]
    return Answer(group, overall, [*choices, *by_rate], facts, tables, beside_others)
