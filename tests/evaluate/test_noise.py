"""What starts of an engine differ by, on made data of which the truth is known."""

import math
import random

import pytest

from evaluate.noise import Noise, learned

LOADS = [f"load_{number}" for number in range(7)]
DRAWS = 3000


def drawn(chance: random.Random, kinds: int, starts: int, shared: float) -> tuple[float, int]:
    """Comparisons of two further starts, and those that the margins cover. Loads differ in their
    noise, and a part of it is the same for all loads of a start."""
    widths = {load: 0.005 * math.exp(chance.gauss(0, 0.7)) for load in LOADS}

    def start() -> dict[str, float]:
        common = chance.gauss(0, 1)
        own = {load: chance.gauss(0, 1) for load in LOADS}
        return {
            load: width * (math.sqrt(shared) * common + math.sqrt(1 - shared) * own[load])
            for load, width in widths.items()
        }

    known = {kind: [start() for _ in range(starts)] for kind in map(str, range(kinds))}
    noise = learned(
        {load: {kind: [one[load] for one in known[kind]] for kind in known} for load in LOADS}
    )
    one, other = start(), start()
    return sum(abs(one[load] - other[load]) <= noise.margin(load) for load in LOADS), len(LOADS)


@pytest.mark.parametrize(
    ("kinds", "starts", "shared", "least"),
    [
        (1, 2, 0.0, 0.92), (1, 2, 0.5, 0.91), (1, 2, 1.0, 0.83),
        (2, 2, 0.0, 0.93), (2, 2, 0.5, 0.93), (2, 2, 1.0, 0.89),
        (2, 3, 0.0, 0.93), (2, 3, 0.5, 0.93), (2, 3, 1.0, 0.90),
    ],
)  # fmt: skip
def test_margins_cover_what_they_say(kinds: int, starts: int, shared: float, least: float) -> None:
    chance = random.Random(3)
    found = [drawn(chance, kinds, starts, shared) for _ in range(DRAWS)]
    covered = sum(inside for inside, _ in found) / sum(count for _, count in found)
    assert least < covered < 0.99


def test_a_restless_load_has_a_wide_margin_and_leaves_the_others_theirs() -> None:
    calm = {load: {"w8a8": [0.0, 0.004, -0.004]} for load in LOADS}
    restless = calm | {"load_0": {"w8a8": [0.0, 0.1, -0.02]}}
    assert learned(restless).margin("load_0") > 0.1
    assert learned(restless).margin("load_1") == learned(calm).margin("load_1") < 0.03


def test_a_load_without_twins_has_what_is_usual_and_one_pair_alone_is_little() -> None:
    loads = {load: {"w8a8": [0.0, 0.01]} for load in LOADS}
    assert learned(loads).margin("another") == pytest.approx(4.303 * 0.01)
    assert learned({"load_0": {"w8a8": [0.0, 0.01]}}).margin("load_0") == pytest.approx(0.12706)
    assert Noise().margin("load_0") == 0.0
    assert learned({"load_0": {"w8a8": [0.0], "fp8": [1.0]}}).starts == 0
