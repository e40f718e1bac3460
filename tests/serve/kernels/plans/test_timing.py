"""Timing, planning and the op on a GPU."""

import contextlib
from functools import partial
from pathlib import Path

import pytest
import torch

from serve.kernels import op
from serve.kernels.plans.planner import LayerRequest, Planner
from serve.kernels.plans.search import TOKENS
from serve.kernels.plans.store import Identity, PlanStore
from serve.kernels.plans.timing import (
    MOST_SPARE,
    Spare,
    cache_bytes,
    copied,
    enough_calls,
    event_time,
    graph_time,
    lasting_times,
)
from serve.kernels.products.product import Unusable, Weight
from tests.serve.kernels.products_for_tests import Few, Plain, Rounded, int8_weight


def test_copies_are_of_their_own() -> None:
    tensors = [torch.arange(6).reshape(2, 3).t(), torch.zeros(2)]
    copies = copied(tensors, 3)
    assert len({tensor.data_ptr() for copy in copies for tensor in copy}) == 6
    assert all(torch.equal(copy[0], tensors[0]) for copy in copies)
    assert all(copy[0].stride() == tensors[0].stride() for copy in copies)
    assert cache_bytes(torch.device("cpu")) == 0


def test_few_copies_take_turns() -> None:
    turns: list[str] = []
    calls = [partial(turns.append, name) for name in "abcde"]
    for call in enough_calls(calls, 12):
        call()
    assert "".join(turns) == "abcde" * 3
    assert len(enough_calls(calls, 4)) == 5


@pytest.mark.parametrize(("spare", "is_given_back"), [(MOST_SPARE, False), (MOST_SPARE + 1, True)])
def test_memory_of_graphs_that_were_timed_is_given_back(
    spare: int, is_given_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 7)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 7 + spare)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("empty"))
    memory = Spare()
    memory.give_back()
    assert bool(calls) is is_given_back
    memory.give_back()
    assert calls in ([], ["empty"]), "what cannot be given back is not tried each time"


@pytest.mark.gpu
def test_timing_many_graphs_keeps_little_memory() -> None:
    """Each graph's results take 64 MiB, in memory of its own."""
    torch.cuda.empty_cache()
    x, weight = (torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    before = torch.cuda.memory_reserved()
    for _ in range(100):
        graph_time([partial(torch.mm, x, weight)] * 2)
    assert torch.cuda.memory_reserved() - before <= MOST_SPARE + 2**28


@pytest.mark.gpu
@pytest.mark.parametrize("clock", [graph_time, event_time])
def test_calls_are_timed_on_the_gpu(clock: object) -> None:
    assert callable(clock)
    x = torch.randn(64, 512, device="cuda")
    weights = [torch.randn(512, 512, device="cuda") for _ in range(4)]
    assert clock([partial(torch.mm, x, weight) for weight in weights]) > 0
    assert cache_bytes(x.device) > 2**20

    def fail() -> None:
        raise RuntimeError("this algorithm is not there")

    with pytest.raises(RuntimeError, match="not there"):
        clock([fail, fail])
    assert clock([partial(torch.mm, x, weight) for weight in weights]) > 0, "nothing is left behind"


@pytest.mark.gpu
def test_products_are_timed_under_lasting_load() -> None:
    x = torch.randn(4096, 2048, device="cuda", dtype=torch.bfloat16)
    small, large = (torch.randn(2048, n, device="cuda", dtype=x.dtype) for n in (1024, 8192))
    first, second = lasting_times([[partial(torch.mm, x, weight)] for weight in (small, large)])
    assert 2 * first < second


@pytest.mark.gpu
def test_a_layer_is_planned_and_captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTLINE_CACHE", str(tmp_path))
    host = int8_weight(256, 512)
    weight = Weight(host.codes.cuda(), host.scales.cuda(), 8, 512)
    request = LayerRequest(
        "int8/256x512", weight, [Plain(), Few(), Rounded()], "plain", torch.bfloat16, torch.int8
    )
    store = PlanStore(Identity(torch.cuda.get_device_name(), "test", "test"))
    with contextlib.suppress(Unusable):  # the three are equally fast: any choice is right
        Planner(lambda: store).plan(request)
    stored = store.find("int8/256x512", ["plain", "few", "rounded"])
    assert stored is not None
    assert {timing.tokens for timing in stored.timings} == set(TOKENS)
    planned = op.Planned((Plain(), Few(), Rounded()), (2, 2, 2), stored)
    op.put("test/256x512", planned)
    tensors = [tensor for product in planned.products for tensor in product.prepare(weight)]
    x = torch.randn(4, 512, device="cuda", dtype=torch.bfloat16)
    codes = torch.zeros(4, 512, device="cuda", dtype=torch.int8)
    scales = torch.ones(4, 1, device="cuda")
    graph = torch.cuda.CUDAGraph()
    op.linear(x, codes, scales, tensors, "test/256x512", 256)
    with torch.cuda.graph(graph):
        result = op.linear(x, codes, scales, tensors, "test/256x512", 256)
    graph.replay()
    torch.cuda.synchronize()
    assert result.shape == (4, 256)
