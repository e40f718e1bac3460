"""Chooses the candidate with the highest capacity among those whose quality is good enough."""

from conf.models import ORIGINAL
from conf.schema.report import TargetsConfig
from evaluate.report.decide.capacity import CapacityCell, CapacityTable
from evaluate.report.decide.quality import Qualities, Quality
from evaluate.report.decide.recommend import (
    UNJUDGED,
    Choice,
    Refusal,
    may_be_headline,
    no_headline,
    quality_text,
    quality_unmet,
)

NO_RATE = "no rate meets the targets"


def choose_capacity(table: CapacityTable, targets: TargetsConfig, qualities: Qualities) -> Choice:
    """The highest rate. The original is kept where none is significantly higher."""
    judged = {cell.candidate: qualities.of_row(cell.row) for cell in table.cells}
    refused = [
        Refusal(cell.candidate, reasons)
        for cell in table.cells
        if (reasons := [*_no_rate(cell), *quality_unmet(judged[cell.candidate], targets)])
    ]
    refused_names = {refusal.candidate for refusal in refused}
    fitting = [cell for cell in table.cells if cell.candidate not in refused_names]
    some_judged = any(judged[c.candidate] for c in table.cells if c.checkpoint != ORIGINAL)
    pool = [
        cell
        for cell in fitting
        if may_be_headline(cell.row, judged[cell.candidate], some_judged, targets)
    ]
    if not pool:
        why = no_headline(fitting[0].candidate) if fitting else "no candidate meets the targets"
        return Choice(table.measure, None, why=why, refused=refused)
    best = pool[0]
    original = next((cell for cell in pool if cell.checkpoint == ORIGINAL), None)
    if original is not None and (best.ratio is None or not best.ratio.differs):
        best = original
    quality = judged[best.candidate]
    return Choice(
        workload=table.measure,
        candidate=best.candidate,
        ratio=best.ratio,
        quality=quality,
        why=capacity_text(best, quality),
        tied=[c.candidate for c in pool if c is not best and _overlap(c, best)],
        second=next((c.candidate for c in pool if c is not best and not _overlap(c, best)), ""),
        changes=[UNJUDGED] if quality is None else [],
        refused=refused,
        unjudged=quality is None,
    )


def _no_rate(cell: CapacityCell) -> list[str]:
    return [] if cell.rate else [NO_RATE]


def _overlap(one: CapacityCell, other: CapacityCell) -> bool:
    return one.interval[0] <= other.interval[1] and other.interval[0] <= one.interval[1]


def capacity_text(cell: CapacityCell, quality: Quality | None) -> str:
    """The capacity of a candidate as a sentence, with its cost where that is known."""
    low, high = (end / cell.gpus for end in cell.interval)
    words = f"holds {cell.rate / cell.gpus:.3g} requests/s per GPU ({low:.3g} to {high:.3g})"
    if cell.users is not None:
        words += f", {cell.users / cell.gpus:.3g} requests in progress at once"
    if cell.ratio is not None:
        ratio = cell.ratio
        words += f", {ratio.ratio:.2f} times the original's ({ratio.low:.2f} to {ratio.high:.2f})"
    cost = cell.cost
    if cost is not None and cost.per_million_output is not None:
        words += f"; {cost.per_million_output:.3g} {cost.currency} per million output tokens"
    return words + quality_text(quality)
