"""Who is faster, on made data: ties where nothing differs, differences where they are."""

import math
import random

import pytest

from evaluate.report.decide.comparison import Workload
from evaluate.report.decide.curves import BATCH, crossing, curves
from evaluate.report.published.figures import sweep_runs
from evaluate.results.rows import Row
from evaluate.results.significance import STATED_START
from tests.evaluate.report.made import Cell, ranked, runs

DRAWS = 400


def only_load(rows: list[Row], max_spread: float = 0.1) -> Workload:
    return ranked(rows, max_spread)[0].workloads[0]


def noisy(chance: random.Random, middle: float, noise: float, count: int = 5) -> list[float]:
    return [middle * (1 + chance.gauss(0, noise)) for _ in range(count)]


def share_of_ties(difference: float, noise: float) -> float:
    chance = random.Random(1)
    ties = 0
    for _ in range(DRAWS):
        one = Cell("one", noisy(chance, 1.0, noise))
        other = Cell("other", noisy(chance, 1.0 + difference, noise))
        workload = only_load(runs(one, other))
        ties += workload.entries[0].tied
    return ties / DRAWS


def test_two_equal_recipes_are_a_tie_in_95_of_100_draws() -> None:
    assert share_of_ties(0.0, 0.01) >= 0.93


def test_a_difference_of_10_percent_is_found_in_noise_of_1_percent() -> None:
    assert share_of_ties(0.1, 0.01) < 0.1


def test_one_wild_run_of_five_moves_no_rank() -> None:
    slow = Cell("slow", [1.2, 1.21, 1.19, 1.2, 1.2])
    fast = Cell("fast", [1.0, 1.01, 0.99, 1.0, 9.0])
    workload = only_load(runs(slow, fast))
    assert [(entry.candidate, entry.rank) for entry in workload.entries] == [
        ("fast", 1),
        ("slow", 2),
    ]


def test_a_published_cell_with_one_wild_run_of_three_is_not_last() -> None:
    """By output tokens a second, as that sweep's ranking went: 1527, 4153 and 3907."""
    chosen = [run for run in sweep_runs() if run.scenario == "base"]
    recipes = dict.fromkeys(run.recipe for run in chosen)
    cells = [
        Cell(name, [1000 / run.output_tokens_per_s for run in chosen if run.recipe == name], "base")
        for name in recipes
    ]
    workload = only_load(runs(*cells))
    order = [entry.candidate for entry in workload.entries]
    ranks = {entry.candidate: entry.rank for entry in workload.entries}
    assert order.index("w8a16_sparse_awq") < len(order) - 1
    assert ranks["w8a16_sparse_awq"] is None
    assert ranks["w8a8_smooth_gptq"] == 1


def test_a_restless_fastest_one_lifts_nobody_over_who_is_told_to_be_faster() -> None:
    restless = Cell("restless", [0.9, 0.97, 1.04])
    workload = only_load(runs(restless, Cell("fast", [1.0, 1.001]), Cell("slow", [1.08, 1.081])))
    ranks = {entry.candidate: entry.rank for entry in workload.entries}
    assert ranks == {"restless": 1, "fast": 1, "slow": 3}


def test_what_spreads_too_much_or_ran_once_has_no_rank_but_its_place() -> None:
    workload = only_load(
        runs(Cell("wide", [0.5, 1.0, 1.5]), Cell("once", [0.7]), Cell("sound", [1.2, 1.2, 1.21]))
    )
    ranks = {entry.candidate: entry.rank for entry in workload.entries}
    assert ranks == {"once": None, "wide": None, "sound": 1}


def test_checkpoints_that_are_the_same_to_the_engine_show_the_noise_between_starts() -> None:
    cells = []
    for number, measure in enumerate(("interactive", "base", "long_context", "decode_bound")):
        shift = 1.03 if number % 2 else 0.97
        cells += [
            Cell("w8a16_awq", [1.0, 1.001, 0.999], measure, format="w8a16"),
            Cell("w8a16_smooth_awq", [shift, shift * 1.001, shift], measure, format="w8a16"),
            Cell("w4a16_gptq", [0.98, 0.981, 0.979], measure),
        ]
    group = ranked(runs(*cells))[0]
    assert group.noise.starts.usual == pytest.approx(0.03 / math.sqrt(2), abs=0.001)
    assert (group.noise.starts.members, group.noise.starts.kinds) == (2, 1)
    assert all(entry.rank == 1 for workload in group.workloads for entry in workload.entries)


def test_one_restless_start_among_calm_ones_is_not_ranked_below_its_twins() -> None:
    """As on an H200: of six starts, two formats with three each, one was 2 % slower throughout."""
    cells = []
    for measure in ("interactive", "base", "long_context", "decode_bound"):
        for twin, (w8a16, w8a8) in enumerate([(1.02, 0.8), (1.0, 0.801), (0.998, 0.799)]):
            steady = (0.999, 1.0, 1.001)
            cells += [
                Cell(f"w8a16_{twin}", [w8a16 * t for t in steady], measure, format="w8a16"),
                Cell(f"w8a8_{twin}", [w8a8 * t for t in steady], measure, format="w8a8"),
            ]
    group = ranked(runs(*cells))[0]
    assert (group.noise.starts.members, group.noise.starts.kinds) == (6, 2)
    for workload in group.workloads:
        assert [entry.rank for entry in workload.entries] == [1, 1, 1, 4, 4, 4]


def test_groups_are_never_compared_with_each_other() -> None:
    found = ranked(
        runs(
            Cell("original", [1.0, 1.01]),
            Cell("original", [0.5, 0.51], device="NVIDIA A100"),
            Cell("w8a8", [0.4, 0.41], device="NVIDIA A100"),
            Cell("w8a8", [0.9, 0.91], versions={"vllm": "0.25.1", "torch": "2.12.0"}),
        )
    )
    assert len({group.title for group in found}) == 3
    alone = next(group for group in found if group.versions["torch"] == "2.12.0")
    assert alone.workloads[0].entries[0].ratio is None


def test_options_are_candidates_and_the_nearest_original_is_the_measure() -> None:
    workload = only_load(
        runs(
            Cell("original", [1.0, 1.01, 1.0]),
            Cell("w4a16", [0.8, 0.81, 0.8]),
            Cell("w4a16", [0.5, 0.51, 0.5], options={"linear_backend": "marlin"}),
        )
    )
    assert [entry.candidate for entry in workload.entries] == [
        "w4a16 (linear_backend=marlin)",
        "w4a16",
        "original",
    ]
    first = workload.entries[0].ratio
    assert first is not None
    assert first.ratio == pytest.approx(2.0, abs=0.02)


def test_of_two_originals_the_one_on_the_same_machine_is_the_measure() -> None:
    """Two machines of one name, of which one is twice as fast; of a third original it is not
    known where it ran."""
    workload = only_load(
        runs(
            Cell("original", [0.7, 0.707, 0.7]),
            Cell("original", [1.0, 1.01, 1.0], card="slow"),
            Cell("original", [0.5, 0.505, 0.5], card="fast"),
            Cell("w4a16", [0.4, 0.404, 0.4], card="fast"),
            Cell("w8a8", [0.5, 0.505, 0.5], card="slow"),
        )
    )
    speedups = {
        entry.checkpoint: entry.ratio.ratio for entry in workload.entries if entry.ratio is not None
    }
    assert speedups == {"w4a16": pytest.approx(1.25), "w8a8": pytest.approx(2.0)}


def test_one_restless_of_two_checkpoints_makes_starts_differ() -> None:
    """With three, one restless checkpoint says nothing of the others."""
    two = [Cell("original", [1.0, 1.11, 1.2]), Cell("w8a8", [0.9, 0.901, 0.902])]
    (pair,) = ranked(runs(*two))
    assert pair.noise.of("interactive").stated_start == pytest.approx(0.065, abs=0.002)
    (three,) = ranked(runs(*two, Cell("calm", [0.91, 0.911, 0.912])))
    assert three.noise.of("interactive").stated_start == STATED_START


def test_one_name_with_two_lengths_is_two_loads() -> None:
    workloads = ranked(runs(Cell("original", [1.0, 1.0]), Cell("original", [2.0, 2.0], inputs=32)))[
        0
    ].workloads
    assert [workload.name for workload in workloads] == [
        "interactive (batch 1, input_tokens 128, output_tokens 64)",
        "interactive (batch 1, input_tokens 32, output_tokens 64)",
    ]


def batch_cells(speedups: dict[int, float]) -> list[Row]:
    cells = []
    for batch, speedup in speedups.items():
        times = [1.0, 1.001, 0.999]
        cells.append(Cell("original", times, f"batch_{batch}", batch=batch))
        cells.append(Cell("w8a16", [t / speedup for t in times], f"batch_{batch}", batch=batch))
    return runs(*cells)


@pytest.mark.parametrize(
    ("speedups", "words"),
    [
        ({1: 1.4, 16: 1.2, 64: 0.8}, "w8a16 is faster than the original below batch 30"),
        ({1: 0.8, 4: 0.9, 16: 1.2}, "w8a16 is faster than the original above batch 7"),
        (
            {1: 1.2, 8: 1.3, 64: 1.1},
            "w8a16 is faster than the original over the whole range, batch 1 to 64",
        ),
        (
            {1: 1.2, 8: 1.0, 64: 0.9},
            "w8a16 is faster than the original up to batch 1, slower from 64 on",
        ),
        (
            {1: 1.0, 4: 1.2, 16: 0.9, 64: 0.8},
            "w8a16 is faster than the original or level with it up to batch 4, slower from 16 on",
        ),
        ({1: 1.0, 2: 1.0, 4: 1.2, 16: 0.9, 64: 1.0}, ""),
        ({1: 1.0, 8: 1.0, 64: 1.0}, ""),
        ({1: 1.3, 4: 0.8, 16: 1.3, 64: 1.3}, ""),
    ],
)
def test_the_batch_at_which_a_checkpoint_starts_to_lose_is_named(
    speedups: dict[int, float], words: str
) -> None:
    group = ranked(batch_cells(speedups))[0]
    said = [crossing(curve) for curve in curves(group, BATCH)]
    assert "".join(said) == words
