"""The search for a plan, with times that are made up."""

from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch

from serve.kernels.plans.plan import Plan, Timing
from serve.kernels.plans.search import FIRST_ROUND, Prepared, Search, chosen
from serve.kernels.plans.timing import copies_needed
from serve.kernels.products.product import Inputs, Product, Unusable
from tests.serve.kernels.products_for_tests import Few, Many, Plain, Rounded, int8_weight

Times = Callable[[str, int, dict[str, int]], float]


def clock(times: Times) -> Callable[[Sequence[Callable[[], object]]], float]:
    """A clock that asks a function for the time of a call."""

    def read(calls: Sequence[Callable[[], object]]) -> float:
        call = calls[0]
        assert isinstance(call, partial)
        inputs, _, options = call.args
        product: Product = call.func.__self__
        return times(product.name, inputs.plain.shape[0], dict(options))

    return read


def search(times: Times, *products: Product, **changed: object) -> Search:
    weight = int8_weight()
    return Search(
        key="int8/48x64",
        rows=48,
        columns=64,
        candidates=[Prepared(product, product.prepare(weight)) for product in products],
        own="plain",
        inputs=lambda tokens: Inputs(torch.empty(tokens, 64)),
        clock=clock(times),
        **changed,  # type: ignore[arg-type]
    )


def products_at(plan: Plan, *tokens: int) -> list[str]:
    return [plan.step(count).product for count in tokens]


def test_the_fastest_is_taken_with_its_options() -> None:
    def times(name: str, tokens: int, options: dict[str, int]) -> float:
        if name == "rounded":
            return 5.0 if tokens <= 64 else 50.0
        return 10.0 if options.get("block") == 64 else 8.0

    found = search(times, Plain(), Rounded())
    plan = found.plan()
    assert products_at(plan, 1, 64, 65, 10**5) == ["rounded", "rounded", "plain", "plain"]
    assert plan.step(100).options == (("block", 128),)
    assert len(plan.timings) == 14 * 4
    assert plan.timings[0].weight_bytes == 48 * 64 + 48 * 4


def test_noise_does_not_displace_vllms_own() -> None:
    close = [Timing(1, "plain", (), 10.0), Timing(1, "few", (), 9.85)]
    faster = [Timing(1, "plain", (), 10.0), Timing(1, "few", (), 9.7)]
    best = [chosen(timings, "plain") for timings in (close, faster)]
    assert [timing.product for timing in best if timing] == ["plain", "few"]
    assert chosen([Timing(1, "few", (), 1.0)], "plain") is None


def test_long_prompts_are_decided_under_lasting_load() -> None:
    """What is faster for a moment may be slower for long."""

    def times(name: str, tokens: int, options: dict[str, int]) -> float:
        slower = {"plain": 1.05, "rounded": 1.0, "many": 1.3}[name]
        return slower * tokens * (1.0 if options.get("block") in (None, 64) else 1.01)

    held: list[list[str]] = []

    def contest(products: Sequence[Sequence[Callable[[], object]]]) -> list[float]:
        read = clock(lambda name, tokens, _: tokens * {"plain": 1.2, "rounded": 1.4}[name])
        held.append([calls[0].func.__self__.name for calls in products])  # type: ignore[attr-defined]
        return [read(calls) for calls in products]

    found = search(times, Plain(), Rounded(), Many(), contest=contest)
    plan = found.plan()
    assert products_at(plan, 2048, 4096, 8192) == ["rounded", "plain", "plain"]
    assert held == [["plain", "rounded"]] * 2
    last = {(t.product, t.options): t.microseconds / 8192 for t in plan.timings if t.tokens == 8192}
    assert last["plain", (("block", 128),)] == pytest.approx(1.2 * 1.01)
    assert min(time for (name, _), time in last.items() if name == "many") == pytest.approx(
        1.3 * 1.2 / 1.05
    )


def test_products_of_earlier_plans_take_part_where_one_is_new() -> None:
    earlier = [Timing(tokens, "plain", (("block", 64),), float(tokens)) for tokens in (4096, 8192)]

    def contest(products: Sequence[Sequence[Callable[[], object]]]) -> list[float]:
        return [9000.0 if len(products) == 2 else 0.0, 8000.0]

    def found(*known: str) -> Plan:
        return search(
            lambda _, tokens, options: 1.1 * tokens, Plain(), Rounded(), contest=contest,
            known=frozenset(known), timings=list(earlier), tokens=(4096, 8192),
        ).plan()  # fmt: skip

    assert products_at(found("plain"), 8192) == ["rounded"]
    held = {(t.tokens, t.product): t.microseconds for t in found("plain").timings}
    assert held[8192, "plain"] == 9000.0
    assert all(t.microseconds == t.tokens for t in found("plain", "rounded").timings)


def test_a_contest_that_fails_leaves_the_times_as_they_are() -> None:
    def contest(products: object) -> list[float]:
        raise RuntimeError("out of memory")

    plan = search(lambda name, *_: 1.0 if name == "rounded" else 1.05, Plain(), Rounded(),
                  contest=contest).plan()  # fmt: skip
    assert products_at(plan, 8192) == ["rounded"]


def test_a_product_is_used_only_for_tokens_that_it_takes() -> None:
    def times(name: str, tokens: int, options: dict[str, int]) -> float:
        return 9.0 if name == "plain" else 1.0

    plan = search(times, Plain(), Few(), Many()).plan()
    assert products_at(plan, 1, 8, 9, 31, 32, 10**5) == [
        *("few", "few", "plain", "plain", "many", "many"),
    ]


def test_a_product_that_takes_few_tokens_does_not_end_a_plan() -> None:
    plan = search(lambda *_: 1.0, Plain(), Few(), tokens=(1, 2, 4)).plan()
    faster = search(
        lambda name, *_: 1.0 if name == "few" else 2.0, Plain(), Few(), tokens=(1, 2, 4)
    ).plan()
    assert products_at(plan, 1, 100) == ["plain", "plain"]
    assert products_at(faster, 1, 8, 9, 100) == ["few", "few", "plain", "plain"]


def test_an_option_that_fails_is_left_out() -> None:
    def times(name: str, tokens: int, options: dict[str, int]) -> float:
        if name == "rounded" and (options["block"] == 64 or tokens > 16):
            raise RuntimeError("this algorithm\n is not there")
        return 2.0 if name == "rounded" else 4.0

    found = search(times, Plain(), Rounded())
    plan = found.plan()
    assert products_at(plan, 16, 17) == ["rounded", "plain"]
    assert plan.step(1).options == (("block", 128),)
    assert "this algorithm is not there" in found.failures["rounded"]


def test_without_time_best_guesses_are_measured_alone() -> None:
    moments = iter(range(1000))

    def times(name: str, tokens: int, options: dict[str, int]) -> float:
        return 10.0 if name == "plain" else 1.0

    plan = search(times, Plain(), Rounded(), seconds=28.5, now=lambda: next(moments)).plan()
    assert len(plan.timings) == 28
    assert plan.is_complete
    assert {timing.options for timing in plan.timings} == {(("block", 64),)}
    assert products_at(plan, 1, 8192) == ["rounded", "rounded"]


@pytest.mark.parametrize(("limit", "measured"), [(3.5, 3), (6.5, 6)])
def test_sizes_that_were_not_measured_follow_the_smaller_ones(limit: float, measured: int) -> None:
    moments = iter(range(1000))
    plan = search(
        lambda name, *_: 10.0 if name == "plain" else 1.0,
        *(Plain(), Rounded(), Few()),
        seconds=limit / FIRST_ROUND,
        now=lambda: next(moments),
    ).plan()
    assert len(plan.timings) == measured
    assert not plan.is_complete
    assert products_at(plan, 1, 10**4) == ["rounded", "rounded"]


def test_without_a_time_of_vllms_own_there_is_no_plan() -> None:
    def times(name: str, tokens: int, options: dict[str, int]) -> float:
        if name == "plain":
            raise RuntimeError("no graph can be captured here")
        return 1.0

    with pytest.raises(Unusable, match=r"could not be measured: .*no graph can be captured here"):
        search(times, Plain(), Rounded()).plan()


class Compiled(Plain):
    """Has kernels that must be compiled."""

    name = "compiled"
    compiles = True
    most = 2


def test_kernels_are_compiled_once_and_first() -> None:
    asked: list[tuple[str, int, dict[str, int]]] = []
    found: Search

    def compile_all(calls: Sequence[Callable[[], object]], seconds: float) -> int:
        assert not found.timings, "nothing is measured before"
        for call in calls:
            assert isinstance(call, partial)
            asked.append((call.func.__self__.name, call.args[0].plain.shape[0], dict(call.args[2])))
        return len(calls)

    found = search(lambda *_: 1.0, Plain(), Compiled(), compile_all=compile_all)
    found.plan()
    assert asked == [("compiled", 1, {"block": 64}), ("compiled", 1, {"block": 128})]


def test_copies_exceed_the_cache() -> None:
    megabytes = 2**20
    assert copies_needed(16 * megabytes, 50 * megabytes) * 16 >= 150
    assert copies_needed(500 * megabytes, 50 * megabytes) == 2
    assert copies_needed(1, 50 * megabytes) == 64
