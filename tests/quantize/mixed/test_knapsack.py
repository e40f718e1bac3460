"""The table gives what trying every combination gives."""

import itertools
import random

import pytest

from quantize.mixed import knapsack
from quantize.mixed.knapsack import Option, fill


def made_options(seed: int, unit: int = 1) -> list[list[Option]]:
    """Six layers with three options each."""
    generator = random.Random(seed)
    return [
        [Option(generator.randint(1, 40) * unit, generator.random()) for _ in range(3)]
        for _ in range(6)
    ]


def totals(options: list[list[Option]], indices: tuple[int, ...] | list[int]) -> tuple[int, float]:
    chosen = [layer[index] for layer, index in zip(options, indices, strict=True)]
    return sum(option.size for option in chosen), sum(option.damage for option in chosen)


def every_total(options: list[list[Option]]) -> list[tuple[int, float]]:
    return [totals(options, indices) for indices in itertools.product(range(3), repeat=6)]


@pytest.mark.parametrize("seed", range(5))
def test_the_least_damage_in_a_size(seed: int) -> None:
    options = made_options(seed, unit=7)
    combinations = every_total(options)
    most = sorted(size for size, _ in combinations)[200]
    size, damage = totals(options, fill(options).within_size(most))
    assert size <= most
    assert damage == pytest.approx(min(loss for total, loss in combinations if total <= most))


@pytest.mark.parametrize("seed", range(5))
def test_the_least_size_for_a_damage(seed: int) -> None:
    options = made_options(seed)
    combinations = every_total(options)
    most = sorted(damage for _, damage in combinations)[200]
    size, damage = totals(options, fill(options).within_damage(most))
    assert damage <= most
    assert size == min(total for total, loss in combinations if loss <= most)


def test_a_coarse_table_still_keeps_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes are rounded up to the unit, so the limit holds where the table is short."""
    monkeypatch.setattr(knapsack, "UNITS_MOST", 16)
    options = made_options(1, unit=1009)
    combinations = every_total(options)
    for most in sorted(size for size, _ in combinations)[::50]:
        assert totals(options, fill(options).within_size(most))[0] <= most


def test_what_cannot_be_kept_is_refused() -> None:
    table = fill([[Option(4, 1.0), Option(8, 0.5)], [Option(4, 1.0), Option(8, 0.5)]])
    with pytest.raises(ValueError, match="smallest choice has a size of 8, above 7"):
        table.within_size(7)
    with pytest.raises(ValueError, match=r"least damage is 1\.0, above 0\.9"):
        table.within_damage(0.9)
