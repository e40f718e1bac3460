"""The choice among measured products: inputs, layouts, and what lies beyond the measurements."""

from dataclasses import dataclass

import pytest

from serve.kernels.linear.choice import (
    ROUNDING,
    Candidate,
    best_times,
    choices,
    steady,
    usable,
)
from serve.kernels.products.product import Options

OWN = Candidate("own", True, "stored")
FEW = Candidate("few", True, "stored", has_end=True)
PLAIN = Candidate("plain", False, "stored", has_end=True)
COPY = Candidate("copy", True, "copy")


@dataclass(frozen=True)
class Timing:
    tokens: int
    product: str
    options: Options
    microseconds: float


def measured(**times: dict[int, float]) -> list[Timing]:
    return [
        Timing(tokens, name, (), time)
        for name, by_tokens in times.items()
        for tokens, time in by_tokens.items()
    ]


Times = dict[str, dict[int, float]]


def chosen(candidates: list[Candidate], times: Times, second: bool = True) -> set[str]:
    best = best_times(measured(**times), candidates)
    left = usable(best, candidates, second)
    return {name for products in left.values() for name in products}


def test_the_best_options_count() -> None:
    timings = [
        Timing(1, "own", (("split", 1),), 5.0),
        Timing(1, "own", (("split", 2),), 4.0),
        Timing(1, "stranger", (), 1.0),
    ]
    assert best_times(timings, [OWN]) == {1: {"own": (4.0 + ROUNDING, (("split", 2),))}}
    plain = Candidate("own", False, "stored")
    assert best_times(timings, [plain]) == {1: {"own": (4.0, (("split", 2),))}}


@pytest.mark.parametrize(
    ("plain", "names"),
    [
        (4.9 + ROUNDING, {"own", "few"}),  # 2 % are not worth a second input
        (4.5 + ROUNDING, {"own", "plain"}),
        (5.2, {"own", "plain"}),  # the rounding is what it saves
    ],
)
def test_a_second_input_needs_a_gain(plain: float, names: set[str]) -> None:
    times = {"own": {1: 8.0, 64: 9.0}, "few": {1: 5.0}, "plain": {1: plain}}
    assert chosen([OWN, FEW, PLAIN], times) == names


@pytest.mark.parametrize(
    ("plain", "few"),
    [({1: 3.0, 16: 7.0}, "plain"), ({1: 7.0, 16: 12.0}, "few")],  # 7.5 with rounding
)
def test_few_tokens_read_one_kind_of_input(plain: dict[int, float], few: str) -> None:
    times = {
        "own": {1: 8.0, 16: 8.0, 64: 9.0},
        "few": {1: 5.0, 16: 5.0},
        "plain": plain,
    }
    best = best_times(measured(**times), [OWN, FEW, PLAIN])
    found = choices(best, [OWN, FEW, PLAIN], "own", True)
    assert [found[1][0], found[16][0], found[64][0]] == [few, few, "own"]


def test_between_few_and_many_tokens_either_input_is_read() -> None:
    wide = Candidate("wide", False, "stored")
    times = {
        "own": {1: 8.0, 32: 8.0, 64: 8.0, 256: 8.0, 512: 20.0},
        "wide": {1: 4.0, 32: 4.0, 64: 30.0, 256: 12.0, 512: 9.0},
    }
    best = best_times(measured(**times), [OWN, wide])
    found = choices(best, [OWN, wide], "own", True)
    assert [found[n][0] for n in (1, 32, 64)] == ["wide", "wide", "own"]
    assert found[256][0] == found[512][0] == "wide", "the better one on average"


def test_one_input_must_take_all_numbers_of_tokens() -> None:
    times = {"own": {1: 8.0, 64: 9.0}, "plain": {1: 2.0}}
    assert chosen([OWN, PLAIN], times) == {"own", "plain"}


def test_plain_alone_where_no_product_needs_rounded_activations() -> None:
    wide = Candidate("wide", False, "stored")
    assert chosen([OWN, wide], {"own": {1: 8.0, 64: 9.0}, "wide": {1: 2.0, 64: 9.1}}) == {"wide"}


@pytest.mark.parametrize(("copy", "names"), [(8.8, {"own"}), (8.0, {"own", "copy"})])
def test_a_second_layout_needs_a_gain(copy: float, names: set[str]) -> None:
    assert chosen([OWN, COPY], {"own": {1: 5.0, 64: 9.0}, "copy": {1: 6.0, 64: copy}}) == names


def test_the_least_useful_layout_goes_first() -> None:
    other = Candidate("other", True, "other")
    times = {"own": {1: 5.0, 64: 9.0}, "other": {1: 4.9, 64: 9.0}, "copy": {1: 5.0, 64: 5.0}}
    assert chosen([OWN, other, COPY], times) == {"copy"}


def test_products_of_one_layout_cost_nothing() -> None:
    assert chosen([OWN, FEW], {"own": {1: 5.0, 64: 9.0}, "few": {1: 4.9}}) == {"own", "few"}


def test_vllms_own_stays_where_ours_is_hardly_faster() -> None:
    times = {"own": {1: 5.0, 16: 5.0, 64: 9.0}, "few": {1: 4.95, 16: 4.8}}  # 6 with rounding
    best = best_times(measured(**times), [OWN, FEW])
    assert choices(best, [OWN, FEW], "own", True) == {
        1: ("own", ()),
        16: ("few", ()),
        64: ("own", ()),
    }


@pytest.mark.parametrize(("copy", "names"), [(20.0, {"own"}), (6.0, {"copy"})])
def test_without_a_second_layout_the_better_one_is_taken(copy: float, names: set[str]) -> None:
    times = {"own": {1: 5.0, 64: 9.0}, "copy": {1: copy, 64: 3.0}}
    assert chosen([OWN, COPY], times, second=False) == names


def test_the_stored_layout_may_have_several_products() -> None:
    times = {"own": {1: 9.0, 64: 9.0}, "few": {1: 4.0}, "copy": {1: 8.0, 64: 7.0}}
    assert chosen([OWN, FEW, COPY], times, second=False) == {"own", "few"}


def test_beyond_the_measured_tokens_runs_a_product_that_takes_them() -> None:
    best = best_times(measured(own={1: 9.0, 16: 9.0}, few={1: 4.0, 16: 4.0}), [OWN, FEW])
    assert choices(best, [OWN, FEW], "own", True) == {
        1: ("few", ()),
        16: ("few", ()),
        17: ("own", ()),
    }


Choice = tuple[str, Options]
TRACEABLE = {"own", "copy"}


@pytest.mark.parametrize(
    ("own", "names"),
    [
        ({1024: 100.0, 8192: 1000.0}, ["few", "own", "own"]),
        ({1024: 105.0, 8192: 1000.0}, ["few", "own", "own"]),  # 5 µs are not worth the host's work
        ({1024: 106.0, 8192: 1000.0}, ["few", "copy", "own"]),
        ({8192: 1000.0}, ["few", "copy", "own"]),  # not measured for all
    ],
)
def test_a_second_product_beyond_captured_graphs_needs_a_gain(
    own: dict[int, float], names: list[str]
) -> None:
    timings = measured(own=own, copy={1024: 100.0, 8192: 1100.0}, few={512: 1.0})
    fastest: dict[int, Choice] = {512: ("few", ()), 1024: ("copy", ()), 8192: ("own", ())}
    assert [name for name, _ in steady(fastest, timings, TRACEABLE).values()] == names


@pytest.mark.parametrize(
    ("copy", "names"),
    [
        ((50.0, 100.0, 500.0, 1020.0), ["copy"] * 4),  # 2 % are not worth a change
        ((50.0, 100.0, 530.0, 1040.0), ["copy", "copy", "own", "own"]),
        ((50.0, 100.0, 500.0, 1040.0), ["copy", "copy", "copy", "own"]),
        ((50.0, 130.0, 530.0, 1040.0), ["copy", "own", "own", "own"]),
    ],
    ids=["no change", "after 2,048", "both parts differ", "the first part differs"],
)
def test_a_product_may_change_after_one_number_of_tokens(
    copy: tuple[float, ...], names: list[str]
) -> None:
    sizes = (1024, 2048, 4096, 8192)
    own = dict(zip(sizes, (60.0, 120.0, 520.0, 1000.0), strict=True))
    other = dict(zip(sizes, copy, strict=True))
    fastest: dict[int, Choice] = {
        tokens: ("own" if own[tokens] < other[tokens] else "copy", ()) for tokens in sizes
    }
    settled = steady(fastest, measured(own=own, copy=other), TRACEABLE)
    assert [settled[tokens][0] for tokens in sizes] == names


@pytest.mark.parametrize(("tokens", "name"), [(2048, "own"), (4096, "copy")])
def test_microseconds_are_spared_where_the_host_may_set_the_pace(tokens: int, name: str) -> None:
    """4 of 50 microseconds, for few tokens only."""
    timings = measured(own={tokens: 54.0, 8192: 90.0}, copy={tokens: 50.0, 8192: 100.0})
    fastest: dict[int, Choice] = {tokens: ("copy", ()), 8192: ("own", ())}
    assert steady(fastest, timings, TRACEABLE)[tokens] == (name, ())


def test_a_choice_that_was_not_measured_stays() -> None:
    fastest: dict[int, Choice] = {8192: ("copy", ()), 8193: ("own", ())}
    assert steady(fastest, measured(copy={8192: 10.0}), TRACEABLE) == fastest


def test_what_graphs_cannot_call_stays_the_fastest() -> None:
    timings = measured(own={1024: 12.0, 8192: 90.0}, copy={1024: 11.0, 8192: 100.0})
    fastest: dict[int, Choice] = {1024: ("copy", ()), 8192: ("own", ())}
    assert steady(fastest, timings, ()) == fastest
    assert set(steady(fastest, timings, {"own"}).values()) == {("own", ())}


def test_other_options_are_another_choice_beyond_captured_graphs() -> None:
    times = {1: (10.0, 10.3), 2: (10.2, 10.0)}
    timings = [
        Timing(tokens, "own", (("schedule", number),), time)
        for number, of in times.items()
        for tokens, time in zip((1024, 8192), of, strict=True)
    ]
    fastest: dict[int, Choice] = {
        1024: ("own", (("schedule", 1),)), 8192: ("own", (("schedule", 2),))
    }  # fmt: skip
    assert set(steady(fastest, timings, TRACEABLE).values()) == {("own", (("schedule", 2),))}


def test_nothing_was_measured_beyond_captured_graphs() -> None:
    assert steady({16: ("own", ())}, measured(own={16: 1.0}), TRACEABLE) == {16: ("own", ())}
