"""Random facts, shares and limits: with ties, gaps, unknown values and several setups."""

import random
from itertools import combinations

from evaluate.report.decide.rules.facts import (
    CandidateFacts,
    EntryFacts,
    Limits,
    RateFacts,
    SearchFacts,
    SetupFacts,
    Shares,
    TrialFacts,
    WorkloadFacts,
)
from evaluate.report.decide.rules.prices import Prices

VERDICTS = ("no loss seen", "small loss", "loss", "broken")


def random_facts(chance: random.Random) -> SetupFacts:
    candidates = [_candidate(chance, place) for place in range(chance.randint(1, 7))]
    places = range(len(candidates))
    workloads = [_workload(chance, f"load_{n}", [*places]) for n in range(chance.randint(1, 5))]
    searches = (
        [
            SearchFacts(
                "capacity",
                "its targets",
                _rates(chance, [*places]),
                ttft_ms=chance.choice([100.0, 150.0]),
                tpot_ms=chance.choice([20.0, 30.0]),
                noise=1.04,
            )
        ]
        if chance.random() < 0.5
        else []
    )
    return SetupFacts(candidates, workloads, searches, energy=chance.random() < 0.8)


def _candidate(chance: random.Random, place: int) -> CandidateFacts:
    original = place == 0 or chance.random() < 0.1
    judged = original or chance.random() < 0.7
    verdict = "the original" if original else chance.choice(VERDICTS)
    return CandidateFacts(
        name=f"name_{chance.randint(0, 99)} {place}",
        weights="original" if original else f"weights {chance.randint(0, 2)}",
        original=original,
        judged=judged,
        recovery=chance.choice([1.0, 0.99, 0.97, None, round(chance.uniform(0.9, 1.01), 4)])
        if judged
        else None,
        verdict=verdict if judged else "",
        pruned=chance.random() < 0.2,
    )


def _workload(chance: random.Random, name: str, places: list[int]) -> WorkloadFacts:
    ranked = [place for place in places if chance.random() < 0.97]
    entries = [_entry(chance, place) for place in ranked]
    factors = [
        None if chance.random() < 0.03 else round(chance.uniform(1.001, 1.2), 5)
        for _ in combinations(ranked, 2)
    ]
    return WorkloadFacts(name, chance.random() < 0.8, entries, factors, [])


def _entry(chance: random.Random, place: int) -> EntryFacts:
    def maybe(value: float) -> float | None:
        return None if chance.random() < 0.02 else value

    median = chance.choice([1.0, 0.8, round(chance.uniform(0.5, 1.5), 5)])
    return EntryFacts(
        candidate=place,
        time=maybe(round(median * chance.uniform(0.99, 1.01), 6)),
        median=median,
        ttft_ms=maybe(float(chance.randint(20, 200))),
        tpot_ms=maybe(float(chance.randint(5, 40))),
        memory_gib=maybe(float(chance.choice([8, 10, 16]))),
        tokens_s=maybe(round(1000 / median, 3)),
        joules=maybe(round(chance.uniform(0.1, 2), 4)),
        inputs_per_output=maybe(round(chance.uniform(0.1, 20), 4)),
    )


def _rates(chance: random.Random, places: list[int]) -> list[RateFacts]:
    rates = sorted((chance.choice([0.0, 4.0, chance.uniform(1, 9)]) for _ in places), reverse=True)
    order = chance.sample(places, len(places))
    judgeable = chance.random() < 0.8
    return [
        RateFacts(
            candidate=place,
            rate=rate,
            low=rate * chance.uniform(0.8, 1),
            high=rate * chance.uniform(1, 1.2),
            above=[lower for lower in order[number + 1 :] if chance.random() < 0.7],
            input_tokens=200.0,
            output_tokens=chance.choice([0.0, 128.0]),
            joules_input=(joules := chance.choice([None, 0.25])),
            joules_output=None if joules is None else 2 * joules,
            trials=[_trial(chance) for _ in range(chance.randint(1, 6))] if judgeable else [],
        )
        for number, (place, rate) in enumerate(zip(order, rates, strict=True))
    ]


def _trial(chance: random.Random) -> TrialFacts:
    rate = chance.choice([4.0, round(chance.uniform(1, 9), 5)])
    paces = [
        (round(chance.uniform(5, 30) * rate, 3), float(chance.randint(2, int(4 * rate) + 2)))
        for _ in range(chance.randint(0, 5))
    ]
    whole = chance.random() < 0.7
    return TrialFacts(rate, chance.randint(0, 3), chance.choice([0, 0, 0, 1]), whole, paces)


def random_shares(chance: random.Random, facts: SetupFacts) -> Shares:
    weights = {one.name: chance.choice([0, 1, chance.randint(0, 100)]) for one in facts.workloads}
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()} if total else {}


def random_limits(chance: random.Random) -> Limits:
    return Limits(
        ttft_ms=chance.choice([None, None, None, 50.0, 150.0]),
        tpot_ms=chance.choice([None, None, None, 20.0, 35.0]),
        min_recovery=chance.choice([None, None, 0.9, 0.97, 0.99, 1.0]),
        max_memory_gib=chance.choice([None, None, None, 10.0]),
        allow_unjudged=chance.random() < 0.3,
    )


def random_prices(chance: random.Random) -> Prices:
    return Prices(chance.choice([None, 2.5]), chance.choice([None, 0.3]))
