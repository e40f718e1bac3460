"""From a layer's weights to a plan that the op runs."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch

from serve.kernels import op
from serve.kernels.plans.planner import LayerRequest, Planner
from serve.kernels.plans.search import Copies, Search
from serve.kernels.plans.store import Identity, PlanStore
from serve.kernels.products.product import Inputs, Options, Product, Unusable, Weight
from tests.serve.kernels.products_for_tests import Few, Plain, Refusing, Rounded, Wrong, int8_weight

SPEED = {"plain": 10.0, "few": 5.0, "rounded": 12.0, "wrong": 1.0, "late_fault": 1.0, "faster": 2.0}


class Clock:
    """Times by product; counts how often it is asked."""

    def __init__(self) -> None:
        self.calls = 0
        self.asked: set[str] = set()

    def __call__(self, calls: Sequence[Callable[[], object]]) -> float:
        self.calls += 1
        call = calls[0]
        assert isinstance(call, partial)
        product: Product = call.func.__self__
        self.asked.add(product.name)
        return SPEED[product.name]


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setenv("QUANTLINE_CACHE", str(tmp_path))
    monkeypatch.setattr(op, "_TABLE", {})
    return Clock()


def planner(clock: Clock) -> Planner:
    return Planner(lambda: PlanStore(Identity("GPU", "2", "3")), clock)


def request(*products: Product, weight: Weight | None = None, **changed: object) -> LayerRequest:
    return LayerRequest(
        key="int8/48x64",
        weight=weight or int8_weight(),
        products=[Plain(), *products],
        own="plain",
        dtype=torch.float32,
        rounded=torch.int8,
        **changed,  # type: ignore[arg-type]
    )


def test_the_op_runs_what_was_planned(clock: Clock) -> None:
    layer = planner(clock).plan(request(Few(), Rounded(), Wrong(), Refusing()))
    assert [part.product for part in layer.planned.plan.ranges] == ["few", "plain"]
    assert not layer.planned.reads_rounded
    assert len(layer.tensors) == 4, "products that are not used keep no tensors"
    assert "is off by" in layer.refused["wrong"]
    assert layer.refused["refusing"] == "takes no layer"
    x, weight = torch.ones(20, 64), int8_weight()
    right = x @ (weight.codes.float() * weight.scales).t()
    torch.testing.assert_close(op.linear(x, None, None, layer.tensors, layer.op_key, 48), right)


def test_a_kind_of_layer_is_measured_once(clock: Clock) -> None:
    plans = planner(clock)
    first = plans.plan(request(Few()))
    calls = clock.calls
    other_weight = int8_weight(48, 64)
    other_weight.codes.neg_()
    second = plans.plan(request(Few(), weight=other_weight))
    assert (clock.calls, second.op_key) == (calls, first.op_key)
    assert torch.equal(second.tensors[0], other_weight.codes)
    assert planner(clock).plan(request(Few())).op_key == first.op_key, "the next start"
    assert clock.calls == calls


def test_only_candidates_that_no_plan_has_measured_are_measured(clock: Clock) -> None:
    planner(clock).plan(request(Rounded(), Few()))
    whole = PlanStore(Identity("GPU", "2", "3")).find("int8/48x64", ["plain", "rounded", "few"])
    clock.asked, calls = set(), clock.calls
    fewer = planner(clock).plan(request(Few()))
    assert clock.calls == calls, "their times are known"
    assert [part.product for part in fewer.planned.plan.ranges] == ["few", "plain"]
    more = planner(clock).plan(request(Few(), Rounded(), Faster()))
    assert clock.asked == {"faster"}
    assert [part.product for part in more.planned.plan.ranges] == ["faster"]
    stored = PlanStore(Identity("GPU", "2", "3"))
    names = ["plain", "rounded", "few", "faster"]
    kept = stored.find("int8/48x64", names)
    assert whole is not None
    assert kept is not None
    assert {*whole.timings} < {*kept.timings}
    assert {timing.product for timing in kept.timings} == {*names}


def test_vllms_own_path_is_taken_where_it_is_the_fastest(clock: Clock) -> None:
    plans = planner(clock)
    for _ in range(2):
        with pytest.raises(Unusable, match="vLLM's own kernel is the fastest"):
            plans.plan(request(Rounded()))


def test_without_a_product_of_ours_the_reasons_are_said(clock: Clock) -> None:
    with pytest.raises(Unusable, match=r"refusing: takes no layer; wrong: is off by "):
        planner(clock).plan(request(Wrong(), Refusing()))
    assert clock.calls == 0


class Faster(Plain):
    name = "faster"


class LateFault(Plain):
    """Wrong only with the option that is measured to be the fastest, for many tokens."""

    name = "late_fault"

    def multiply(
        self, inputs: Inputs, tensors: list[torch.Tensor], options: Options
    ) -> torch.Tensor:
        result = super().multiply(inputs, tensors, options)
        if inputs.plain.shape[0] > 40:
            raise RuntimeError("CUDA error")
        return result


def test_a_product_that_fails_with_the_plans_options_is_dropped(clock: Clock) -> None:
    def choose(timings: object) -> dict[int, tuple[str, Options]]:
        names = {timing.product for timing in timings}  # type: ignore[attr-defined]
        late = {1: ("few", ()), 64: ("plain", (("block", 64),))}
        if "late_fault" in names:
            late[8192] = ("late_fault", (("block", 64),))
        return late

    layer = planner(clock).plan(request(Few(), LateFault(), choose=choose))
    assert layer.planned.plan.products == ["few", "plain"]
    assert layer.refused["late_fault"] == "fails: CUDA error"


def test_what_cannot_be_measured_is_tried_once(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        clock.calls += 1
        raise torch.OutOfMemoryError("CUDA out of memory")

    plans = planner(clock)
    monkeypatch.setattr("serve.kernels.plans.search.copied", fail)
    for _ in range(3):
        with pytest.raises(Unusable, match="fails: CUDA out of memory"):
            plans.plan(request(Few()))
    assert clock.calls == 1


def test_a_plan_that_is_not_complete_is_not_stored(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure_all = Search._measure_all

    def measure_some(search: Search, sizes: list[int], copies: Copies) -> bool:
        measure_all(search, sizes, copies)
        return False

    monkeypatch.setattr(Search, "_measure_all", measure_some)
    planner(clock).plan(request(Few()))
    calls = clock.calls
    planner(clock).plan(request(Few()))
    assert clock.calls == 2 * calls


def test_the_next_start_gives_the_same_reasons(clock: Clock) -> None:
    class Absent(Few):
        name = "absent"  # has no time: the clock raises

    layers = [planner(clock).plan(request(Few(), Absent())) for _ in range(2)]
    assert "absent" in layers[0].refused
    assert layers[0].refused == layers[1].refused


def test_the_plan_is_part_of_the_key_of_graphs(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts: list[str] = []
    monkeypatch.setattr("serve.kernels.plans.planner.add_to_graph_key", facts.append)
    plans = planner(clock)
    layers = [plans.plan(request(Few())) for _ in range(2)]
    assert facts == [layer.op_key for layer in layers]


def test_any_failure_leaves_vllms_own_path(clock: Clock) -> None:
    def choose(_: object) -> dict[int, tuple[str, Options]]:
        raise KeyError("x")

    with pytest.raises(Unusable, match="fails: 'x' is not known"):
        planner(clock).plan(request(Few(), choose=choose))
