"""Few requests of a trial decide any targets: as all of its requests do."""

import random

import pytest

from evaluate.results.late_requests import RequestPace, allowed_misses, slowest

CASES = 2000


def paces(chance: random.Random, count: int) -> list[RequestPace]:
    """Whole numbers, so that many are equal, and some that are late by both targets."""
    both = chance.random()
    found = []
    for _ in range(count):
        ttft, tpot = chance.randint(0, 30), chance.randint(0, 30)
        found.append((float(ttft), float(ttft if chance.random() < both else tpot)))
    return found


def late(found: list[RequestPace], ttft: float, tpot: float) -> int:
    return sum(one > ttft or other > tpot for one, other in found)


def test_the_slowest_requests_decide_as_all_of_them_do() -> None:
    chance = random.Random(31)
    decided = {True: 0, False: 0}
    for _ in range(CASES):
        count = chance.randint(1, 60)
        every = paces(chance, count)
        allowed = allowed_misses(count, chance.choice([0.5, 0.8, 0.9, 0.99]))
        kept = slowest(every, allowed)
        assert len(kept) <= 2 * (allowed + 1)
        for _ in range(20):
            ttft, tpot = chance.randint(-1, 31), chance.randint(-1, 31)
            # Requests that failed take a part of what is allowed.
            failed = chance.randint(0, allowed + 1)
            number = late(every, ttft, tpot)
            assert (failed + late(kept, ttft, tpot) > allowed) == (failed + number > allowed)
            if number <= allowed:
                assert late(kept, ttft, tpot) == number
            decided[number > allowed] += 1
    assert min(decided.values()) > CASES


@pytest.mark.parametrize(
    ("requests", "share", "allowed"), [(1000, 0.99, 10), (100, 0.9, 10), (99, 0.99, 0), (7, 1.0, 0)]
)
def test_allowed_misses_are_not_rounded_down(requests: int, share: float, allowed: int) -> None:
    assert allowed_misses(requests, share) == allowed
