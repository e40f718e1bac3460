"""The speed-up over a mix: the same verdict from both sides, and that of each workload alone."""

import math
import random
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest

from conf.schema.report import ReportConfig
from evaluate.report.contents import read_rows
from evaluate.report.decide.decision import Answer, decide
from evaluate.report.decide.mix import choose_mix
from evaluate.report.decide.quality import Qualities
from evaluate.report.decide.ranking import speed_ratio
from evaluate.report.decide.rules.facts import Limits, SetupFacts, Shares, WorkloadFacts
from evaluate.report.decide.rules.pick import MixRatio, mix_ratio, pick, workload_ratio
from evaluate.results.significance import Ratio
from tests.conftest import ROOT
from tests.evaluate.report.rules.random_facts import random_facts, random_shares

PUBLISHED = sorted((ROOT / "results").glob("*/*.jsonl*"))
CASES = 300
ROUNDED = 2e-5  # the page's facts have six digits


@pytest.fixture(
    scope="module", params=PUBLISHED, ids=lambda path: f"{path.parent.name}/{path.name}"
)
def published(request: pytest.FixtureRequest) -> tuple[list[Answer], Qualities, ReportConfig]:
    path: Path = request.param
    config = ReportConfig(results=[str(path)])
    rows, faults, _ = read_rows(config)
    assert not faults
    decision = decide(rows, config)
    return decision.answers, decision.qualities, config


def assert_opposite(there: MixRatio | None, back: MixRatio | None) -> None:
    assert (there is None) == (back is None)
    if there is None or back is None:
        return
    assert there.differs == back.differs
    assert (there.ratio * back.ratio, there.low * back.high, there.high * back.low) == (
        pytest.approx((1, 1, 1))
    )


def cases(seed: int) -> Iterator[tuple[SetupFacts, Shares, list[WorkloadFacts]]]:
    """Facts, a mix, and the workloads in it."""
    chance = random.Random(seed)
    for _ in range(CASES):
        facts = random_facts(chance)
        shares = random_shares(chance, facts)
        yield facts, shares, [one for one in facts.workloads if shares.get(one.name, 0) > 0]


def test_both_sides_of_a_comparison_give_one_verdict() -> None:
    compared = 0
    for facts, shares, workloads in cases(seed=5):
        places = [place for place in range(len(facts.candidates)) if in_all(workloads, place)]
        for one, other in combinations(places, 2):
            there = mix_ratio(workloads, shares, one, other, places[0])
            assert_opposite(there, mix_ratio(workloads, shares, other, one, places[0]))
            compared += there is not None
    assert compared > CASES


def in_all(workloads: list[WorkloadFacts], place: int) -> bool:
    return bool(workloads) and all(one.entry(place) is not None for one in workloads)


def test_the_interval_of_a_mix_lies_between_those_of_its_workloads() -> None:
    compared = 0
    for facts, shares, workloads in cases(seed=6):
        for place in range(1, len(facts.candidates)):
            if not in_all(workloads, place) or not in_all(workloads, 0):
                continue
            whole = mix_ratio(workloads, shares, place, 0, 0)
            parts = [workload_ratio(workload, place, 0) for workload in workloads]
            known = [part for part in parts if part is not None]
            if whole is None:
                assert len(known) < len(parts)
                continue
            widths = [part.high / part.ratio for part in known]
            assert min(widths) <= whole.high / whole.ratio * (1 + 1e-12)
            assert whole.high / whole.ratio <= max(widths) * (1 + 1e-12)
            compared += 1
    assert compared > CASES


def test_published_pairs_have_one_verdict_which_is_that_of_the_rows(
    published: tuple[list[Answer], Qualities, ReportConfig],
) -> None:
    for answer in published[0]:
        names = [candidate.name for candidate in answer.facts.candidates]
        for facts, workload in zip(answer.facts.workloads, answer.group.workloads, strict=True):
            for one, other in combinations([entry.candidate for entry in facts.entries], 2):
                there = workload_ratio(facts, one, other)
                assert_opposite(there, workload_ratio(facts, other, one))
                entries = [workload.of(names[place]) for place in (one, other)]
                assert entries[0] is not None
                assert entries[1] is not None
                assert_same(there, speed_ratio(entries[0], entries[1], answer.group.noise))


def assert_same(found: MixRatio | Ratio | None, own: MixRatio | Ratio | None) -> None:
    assert (found is None) == (own is None)
    if found is None or own is None:
        return
    assert (found.ratio, found.low, found.high) == pytest.approx(
        (own.ratio, own.low, own.high), rel=ROUNDED
    )
    assert found.differs == own.differs


def test_the_answer_of_a_workload_is_that_of_a_mix_of_it_alone(
    published: tuple[list[Answer], Qualities, ReportConfig],
) -> None:
    answers, judged, config = published
    for answer in answers:
        names = [candidate.name for candidate in answer.facts.candidates]
        choices = {choice.workload: choice for choice in answer.workloads}
        for workload in answer.group.workloads:
            own = choices[workload.name]
            mixed = choose_mix(
                answer.group, {workload.name: 1.0}, config.targets, judged, answer.facts
            )
            shares: Shares = {workload.name: 1.0}
            picked = pick(answer.facts, shares, Limits())
            place = None if own.candidate is None else names.index(own.candidate)
            assert own.candidate == mixed.candidate
            assert place == picked.candidate
            assert own.tied == mixed.tied == [names[place] for place in picked.tied]
            assert own.second == mixed.second
            assert_same(mixed.ratio, own.ratio)
            entry = None if own.candidate is None else workload.of(own.candidate)
            if entry is not None and own.ratio is not None:
                assert_same(own.ratio, entry.ratio)  # the line of the tables


def test_two_workloads_that_are_alike_have_the_interval_of_one() -> None:
    """Errors of one start are correlated, so a second workload makes nothing more certain."""
    chance = random.Random(7)
    facts = next(
        facts
        for facts in (random_facts(chance) for _ in range(CASES))
        if len(facts.candidates) > 2 and in_all(facts.workloads[:1], 1)
    )
    first = facts.workloads[0]
    one, other = (entry.candidate for entry in first.entries[:2])
    twin = WorkloadFacts("twin", first.tpot, first.entries, first.factors, first.unranked)
    alone = workload_ratio(first, one, other)
    both = mix_ratio([first, twin], {first.name: 0.4, "twin": 0.6}, one, other, one)
    assert alone is not None
    assert both is not None
    assert math.log(both.high / both.low) == pytest.approx(math.log(alone.high / alone.low))
