"""Turns rows into an answer: groups what may be compared, ranks it, and chooses what to serve."""

from collections.abc import Sequence
from dataclasses import dataclass

from conf.schema.report import ReportConfig
from evaluate.report.decide.comparison import ComparisonGroup, comparison_groups
from evaluate.report.decide.mix import choose_mix
from evaluate.report.decide.quality import Qualities, qualities
from evaluate.report.decide.ranking import rank_all
from evaluate.report.decide.recommend import Choice, choose
from evaluate.results.mix_check import check_mix
from evaluate.results.rows import Row


@dataclass
class Answer:
    """What to serve, for one comparison group."""

    group: ComparisonGroup
    overall: Choice
    """For the mix, or for all workloads with equal shares."""
    workloads: list[Choice]
    """One per workload."""


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
    answers = [
        Answer(
            group,
            choose_mix(group, config.mix, config.targets, judged),
            [choose(workload, config.targets, judged, group.noise) for workload in group.workloads],
        )
        for group in groups
    ]
    return Decision(groups, judged, answers)
