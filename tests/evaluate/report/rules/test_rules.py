"""The rule in Python and in the page give the same answers."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import pytest
from playwright.sync_api import Browser

from evaluate.report.decide.rules.facts import (
    CandidateFacts,
    EntryFacts,
    Limits,
    RateFacts,
    SearchFacts,
    SetupFacts,
    Shares,
    WorkloadFacts,
)
from evaluate.report.decide.rules.judge_trials import judged_search
from evaluate.report.decide.rules.pick import Problem, pick
from evaluate.report.decide.rules.pick_rate import pick_rate
from evaluate.report.decide.rules.prices import Prices, counted, mix_cost, rate_cost
from evaluate.report.show.page import FILES
from evaluate.report.show.what_if.data import packed
from tests.evaluate.report.browser import CHROMIUM
from tests.evaluate.report.rules.random_facts import (
    random_facts,
    random_limits,
    random_prices,
    random_shares,
)

CASES = 1000
BY_PAGE = """(cases) => cases.map(({ facts: packed, shares, limits, prices }) => {
    const rules = window.quantlineRules;
    const facts = rules.read(packed);
    const counted = rules.counted(facts, prices);
    const reference = facts.candidates.findIndex((candidate) => candidate.original);
    return {
        picked: rules.pick(facts, shares, limits),
        costs: facts.candidates.map(
            (_, place) => ["input_tokens", "output_tokens"].map(
                (kind) => rules.mixCost(facts, shares, place, reference, counted, kind))),
        judged: facts.searches.map((search) => rules.judgedSearch(search, limits).rates.map(
            (rate) => [rate.candidate, rate.low, rate.high, rate.above])),
        rates: facts.searches.map((search) => rules.pickRate(
            facts, rules.judgedSearch(search, limits), limits)),
        rate_costs: facts.searches.map(
            (search) => search.rates.flatMap((rate) => ["input_tokens", "output_tokens"].map(
                (kind) => rules.rateCost(rate, counted, kind)))),
    };
})"""


@dataclass
class Case:
    facts: SetupFacts
    shares: Shares
    limits: Limits
    prices: Prices

    def for_page(self) -> dict[str, Any]:
        return {
            "facts": packed(self.facts),
            "shares": self.shares,
            "limits": asdict(self.limits),
            "prices": asdict(self.prices),
        }

    @property
    def judged(self) -> list[SearchFacts]:
        """The searches under the limits."""
        return [judged_search(one, self.limits) for one in self.facts.searches]

    def by_python(self) -> dict[str, Any]:
        facts, shares = self.facts, self.shares
        used = [workload for workload in facts.workloads if shares.get(workload.name, 0) > 0]
        reference = next(place for place, one in enumerate(facts.candidates) if one.original)
        prices = counted(self.prices, facts.energy)
        content = {
            "picked": asdict(pick(facts, shares, self.limits)),
            "costs": [
                [
                    asdict(mix_cost(used, shares, place, reference, prices, is_input))
                    for is_input in (True, False)
                ]
                for place in range(len(facts.candidates))
            ],
            "judged": [
                [[rate.candidate, rate.low, rate.high, rate.above] for rate in one.rates]
                for one in self.judged
            ],
            "rates": [asdict(pick_rate(facts, one, self.limits)) for one in self.judged],
            "rate_costs": [
                [
                    asdict(rate_cost(rate, prices, is_input))
                    for rate in one.rates
                    for is_input in (True, False)
                ]
                for one in facts.searches
            ],
        }
        for found in content["rates"]:
            found["misses"] = {str(place): misses for place, misses in found["misses"].items()}
        return content


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    chance = random.Random(23)
    made = []
    for _ in range(CASES):
        facts = random_facts(chance)
        limits, prices = random_limits(chance), random_prices(chance)
        made.append(Case(facts, random_shares(chance, facts), limits, prices))
    return made


@pytest.fixture(scope="module")
def by_page(browser: Browser, cases: list[Case]) -> Iterator[list[dict[str, Any]]]:
    page = browser.new_page()
    page.add_script_tag(content=(FILES / "rules.js").read_text())
    # Through JSON, as the page reads its own data.
    text = json.dumps([case.for_page() for case in cases])
    yield page.evaluate(f"(text) => ({BY_PAGE})(JSON.parse(text))", text)
    page.close()


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
def test_the_page_picks_what_python_picks(cases: list[Case], by_page: list[dict[str, Any]]) -> None:
    for case, found in zip(cases, by_page, strict=True):
        assert found == case.by_python(), case


def test_the_cases_reach_every_part_of_the_rule(cases: list[Case]) -> None:
    picks = [pick(case.facts, case.shares, case.limits) for case in cases]
    problems = Counter(one.problem for one in picks)
    assert set(problems) == set(Problem)
    assert problems[Problem.NONE] > CASES / 3
    assert sum(bool(one.tied) for one in picks) > CASES / 20
    assert sum(one.second is not None for one in picks) > CASES / 20
    assert any(standing.unjudged for one in picks for standing in one.standings)
    missed = {miss.rule for one in picks for s in one.standings for miss in s.misses}
    assert len(missed) == 10
    # The better setup of a checkpoint comes before the one with the smaller memory.
    setups = [
        one
        for case, one in zip(cases, picks, strict=True)
        if one.candidate is not None
        for place in one.tied
        if case.facts.candidates[place].weights == case.facts.candidates[one.candidate].weights
    ]
    assert setups
    # A higher rate that is not significant is passed over.
    passed_over = [
        case
        for case in cases
        for search in case.facts.searches
        for picked in [pick_rate(case.facts, search, case.limits)]
        if picked.candidate not in (None, *picked.fitting[:1])
        and not case.facts.candidates[picked.candidate or 0].original
    ]
    assert passed_over
    # A rate above a lower original is passed over, too, where it is not above the highest.
    above_another = [
        search
        for case in cases
        for search in case.facts.searches
        for picked in [pick_rate(case.facts, search, case.limits)]
        if picked.candidate is not None and picked.candidate == picked.reference
        for rate in search.rates
        if rate.candidate in picked.fitting
        and any(case.facts.candidates[place].original for place in rate.above)
        and not case.facts.candidates[rate.candidate].original
    ]
    assert above_another


def test_the_cases_reach_every_part_of_the_judgement(cases: list[Case]) -> None:
    judged = [
        (rate, case)
        for case in cases
        for own, search in zip(case.facts.searches, case.judged, strict=True)
        for rate in search.rates
        if search is not own
    ]
    assert len(judged) > CASES / 4
    assert sum(rate.high is None for rate, _ in judged) > CASES / 20
    assert sum(not rate.rate for rate, _ in judged) > CASES / 20
    assert sum(bool(rate.above) for rate, _ in judged) > CASES / 20
    kept = [own in case.judged for case in cases for own in case.facts.searches]
    assert sum(kept) > CASES / 20


def test_a_significantly_higher_rate_is_served_where_a_higher_one_is_uncertain() -> None:
    candidates = [
        CandidateFacts(name, name, name == "original", True, 1.0, "no loss seen", False)
        for name in ("original", "sure", "unsure")
    ]
    rates = [
        RateFacts(2, 12.0, 9.0, 15.0, [], 200.0, 100.0, None, None),
        RateFacts(1, 11.8, 11.6, 12.0, [0], 200.0, 100.0, None, None),
        RateFacts(0, 10.0, 9.9, 10.1, [], 200.0, 100.0, None, None),
    ]
    search = SearchFacts("capacity", "its targets", rates)
    picked = pick_rate(SetupFacts(candidates, [], [search]), search, Limits())
    assert (picked.candidate, picked.tied, picked.second) == (1, [2], 0)
    assert picked.reference == 0


def test_a_mix_has_the_cost_of_its_input_tokens() -> None:
    """The original makes 50 tokens a second of each workload in its half of the time, from 100 and
    from 400 input tokens. The candidate does the same in half the time and energy."""

    def workload(name: str, inputs_per_output: float | None) -> WorkloadFacts:
        original = EntryFacts(0, 1.0, 1.0, None, None, None, 100.0, 2.0, inputs_per_output)
        faster = EntryFacts(1, 0.5, 0.5, None, None, None, 200.0, 1.0, inputs_per_output)
        return WorkloadFacts(name, True, [original, faster], [1.01], [])

    workloads, shares = [workload("short", 2.0), workload("long", 8.0)], {"short": 0.5, "long": 0.5}
    prices = Prices(per_hour=3.6)
    outputs = [mix_cost(workloads, shares, place, 0, prices) for place in (0, 1)]
    assert [one.money for one in outputs] == pytest.approx([10.0, 5.0])
    inputs = [mix_cost(workloads, shares, place, 0, prices, is_input=True) for place in (0, 1)]
    assert [one.money for one in inputs] == pytest.approx([2.0, 1.0])
    assert [one.joules for one in inputs] == pytest.approx([0.4e6, 0.2e6])
    workloads[1] = workload("long", None)
    assert mix_cost(workloads, shares, 1, 0, prices) == outputs[1]
    unknown = mix_cost(workloads, shares, 1, 0, prices, is_input=True)
    assert (unknown.money, unknown.joules) == (None, None)


def test_missing_energy_makes_no_candidate_cheaper() -> None:
    """Where any energy was measured, a candidate without it has no known cost."""
    measured = RateFacts(0, 10.0, 9.9, 10.1, [], 200.0, 100.0, 0.25, 0.5)
    unknown = replace(measured, joules_input=None, joules_output=None)
    prices = Prices(3.6, 0.36)
    facts = SetupFacts([], [], [SearchFacts("capacity", "", [measured, unknown])])
    money = rate_cost(measured, counted(prices, facts.energy)).money
    assert money == pytest.approx(1.0 + 0.05)
    assert rate_cost(unknown, counted(prices, facts.energy)).money is None
    on_cpu = replace(facts, energy=False)
    assert rate_cost(unknown, counted(prices, on_cpu.energy)).money == pytest.approx(1.0)
