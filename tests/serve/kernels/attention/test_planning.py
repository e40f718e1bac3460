"""A plan uses our attention for as many requests as it is faster for, at every length."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from serve.kernels.attention import planning
from serve.kernels.attention.launch import DECODE_OPTIONS, NewTokens
from serve.kernels.attention.planning import (
    CONTEXTS,
    OURS,
    OWN,
    AttentionSearch,
    options_for,
    planned,
)
from serve.kernels.attention.shape import Cache, Shape
from serve.kernels.attention.trial_requests import PAGE, STALE, Pool
from serve.kernels.plans.plan import Plan, Step, Timing
from serve.kernels.plans.store import Identity, PlanStore, StoredPlan
from serve.kernels.plans.timing import Call
from serve.kernels.products.product import Unusable

SHAPE = Shape(8, 2, 64, torch.bfloat16)
Times = Callable[[int, int, dict[str, int]], float]
"""Microseconds of ours for requests and a length, by its options."""


def pool(tokens: int = 4096) -> Pool:
    return Pool(SHAPE, torch.zeros(tokens // PAGE, 2, PAGE, 2, 64, dtype=SHAPE.dtype))


def own(new: NewTokens, cache: Cache, out: torch.Tensor) -> Call:
    return partial(len, (new.lengths, int(new.lengths[0])))


def search(ours: Times, vllms: float = 10.0, **changes: Any) -> AttentionSearch:
    def clock(calls: Sequence[Call]) -> float:
        call = calls[0]
        assert isinstance(call, partial)
        if call.func is len:
            return vllms
        _, new, _, _, _, options = call.args
        return ours(new.lengths.shape[0], int(new.lengths[0]), dict(options))

    given = {"requests": (1, 4, 16), "contexts": (32, 256), **changes}
    return AttentionSearch(SHAPE, pool(), own, clock, **given)


def test_the_fastest_options_are_used_as_far_as_they_are_faster() -> None:
    def ours(requests: int, context: int, options: dict[str, int]) -> float:
        return 12.0 if requests == 16 else 8.0 - (options["TOKENS"] == 64)

    plan = search(ours).plan()
    assert [(one.up_to, one.product) for one in plan.ranges] == [(4, OURS), (None, OWN)]
    assert dict(plan.step(3).options)["TOKENS"] == 64


def test_options_that_are_slower_at_one_length_are_not_used() -> None:
    def ours(requests: int, context: int, options: dict[str, int]) -> float:
        if options["TOKENS"] == 64:
            return 9.0
        return 2.0 if context == 32 else 10.5

    plan = search(ours).plan()
    assert {dict(plan.step(requests).options)["TOKENS"] for requests in (1, 4)} == {64}


def test_a_gain_within_noise_is_none() -> None:
    assert search(lambda *_: 9.9).plan().products == [OWN]


def test_options_that_a_gpu_cannot_run_are_left_out() -> None:
    def ours(requests: int, context: int, options: dict[str, int]) -> float:
        if options["TOKENS"] == 64:
            raise RuntimeError("out of resource: shared memory")
        return 5.0

    made = search(ours)
    assert made.plan().step(1).product == OURS
    tried = {dict(one.options).get("TOKENS") for one in made.timings[32]}
    assert tried == {None, 16, 32}


def test_kernels_overlap_from_hopper_on() -> None:
    for requests in (1, 8, 64):
        assert not any(dict(one)["PDL"] for one in options_for(SHAPE, requests, overlaps=False))
        assert all(dict(one)["PDL"] for one in options_for(SHAPE, requests))


def test_requests_that_do_not_fit_at_any_length_run_as_vllm_runs_them() -> None:
    plan = search(lambda *_: 5.0, requests=(1, 512)).plan()
    assert [(one.up_to, one.product) for one in plan.ranges] == [(1, OURS), (None, OWN)]


def test_more_requests_than_were_measured_run_as_vllm_runs_them() -> None:
    assert search(lambda *_: 5.0).plan().step(17).product == OWN


def test_requests_of_a_pool_have_places_of_their_own() -> None:
    copies = pool().copies(4, 100)
    places = torch.cat([new.table[:, :7].flatten() for new in copies]).tolist()
    assert len(places) == len(set(places))
    assert len(copies) == 4096 // PAGE // (4 * 7)
    for new in copies:
        assert (new.slots == new.table[:, 6].long() * PAGE + 3).all()
        assert new.queries.shape == (4, 8, 64)
        assert new.table.shape[1] == 7 + STALE, "as in an engine, more pages than it needs"


@pytest.mark.parametrize("requests", [1, 8, 64, 512])
def test_there_are_options_for_any_number_of_requests(requests: int) -> None:
    for shape in (SHAPE, Shape(32, 8, 128, torch.bfloat16), Shape(16, 16, 64, torch.float16)):
        found = [dict(options) for options in options_for(shape, requests)]
        assert found
        programs = requests * shape.key_heads
        for one in found:
            assert one["EAGER"] <= one["SPLIT"] <= planning.MOST_PARTS
            assert one["EAGER"] == 1 or programs * one["EAGER"] <= planning.PROGRAMS


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlanStore:
    monkeypatch.setenv("QUANTLINE_CACHE", str(tmp_path))
    monkeypatch.setattr(planning, "reserve", lambda *_: None)
    monkeypatch.setattr(Pool, "made", staticmethod(lambda shape, device: pool()))
    monkeypatch.setattr(planning, "check", lambda *_: None)
    monkeypatch.setattr(planning, "capability", lambda: None)
    return PlanStore(Identity("a GPU", "torch", "vllm"))


def test_a_plan_is_measured_once_and_kept(
    store: PlanStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches = []

    def made(shape: Shape, trial: Pool, theirs: Any, overlaps: bool) -> AttentionSearch:
        searches.append(shape)
        return search(lambda *_: 5.0, contexts=planning.CONTEXTS)

    monkeypatch.setattr(planning, "AttentionSearch", made)
    cpu = torch.device("cpu")
    first = planned(SHAPE, cpu, own, store)
    assert planned(SHAPE, cpu, own, store) == first
    assert len(searches) == 1
    (stored, *_) = store._file().plans
    assert (stored.key, stored.rows, stored.columns) == (f"{SHAPE}/context 256", 2 * 8 * 64, 256)
    assert all(timing.weight_bytes for timing in stored.plan.timings)


OLD = (("PDL", 1), ("SPLIT", 8))
"""Options of an earlier kernel."""


@pytest.mark.parametrize(
    "plan",
    [
        Plan((Step(1, OURS, OLD), Step(None, OWN))),
        Plan((Step(None, OWN),), (Timing(1, OWN, (), 5.0), Timing(1, OURS, OLD, 9.0))),
    ],
    ids=["it won", "it lost"],
)
def test_a_plan_of_a_kernel_with_other_options_is_measured_again(
    plan: Plan, store: PlanStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for context in planning.CONTEXTS:
        key = planning.key_of(SHAPE, context)
        store.keep(StoredPlan(key, (OURS, OWN), plan, 1024, context, "bf16"))
    monkeypatch.setattr(
        planning, "AttentionSearch", lambda *_, **__: search(lambda *_: 5.0, contexts=CONTEXTS)
    )
    found = planned(SHAPE, torch.device("cpu"), own, store)
    assert dict(found.step(1).options).keys() == DECODE_OPTIONS
    assert planning._stored(SHAPE, store) == found, "and kept"


def test_that_vllms_own_is_the_fastest_is_kept_too(
    store: PlanStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches = []

    def made(*_: Any, **__: Any) -> AttentionSearch:
        searches.append(1)
        return search(lambda *_: 20.0, contexts=planning.CONTEXTS)

    monkeypatch.setattr(planning, "AttentionSearch", made)
    for _ in range(2):
        with pytest.raises(Unusable, match="vLLM's own attention is the fastest"):
            planned(SHAPE, torch.device("cpu"), own, store)
    assert len(searches) == 1


def test_what_ended_an_engine_is_not_tried_again(
    store: PlanStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "serve.kernels.plans.trials.Trials.blamed", lambda self, key: {OURS: "an engine ended"}
    )
    with pytest.raises(Unusable, match="an engine ended"):
        planned(SHAPE, torch.device("cpu"), own, store)


def test_a_plan_whose_kernel_is_wrong_is_not_used(
    store: PlanStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*_: Any) -> None:
        raise Unusable("wrong by 1")

    made = search(lambda *_: 5.0, contexts=planning.CONTEXTS)
    monkeypatch.setattr(planning, "AttentionSearch", lambda *_, **__: made)
    monkeypatch.setattr(planning, "check", wrong)
    with pytest.raises(Unusable, match="wrong by 1"):
        planned(SHAPE, torch.device("cpu"), own, store)
