"""Times a product with a cold cache: each call reads its own copy of the weights.

A model's layers come one after another, and no layer's weights are in the L2 cache when their turn
comes. Copies that together exceed the cache several times give the same state. One CUDA graph holds
all calls, as in vLLM's decode steps, so that launches cost what they cost there.
"""

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch

Call = Callable[[], object]
Clock = Callable[[Sequence[Call]], float]
"""Returns the microseconds of one call; each call has weights of its own."""
CACHE_MULTIPLE = 3
FEWEST_COPIES, MOST_COPIES = 2, 64
FEWEST_CALLS, FEWEST_LONG_CALLS = 12, 4
"""Of one measurement: starting and stopping the clock takes a part of a short product's time.
Products outside of graphs have many tokens, and take long."""
REPEATS = 5
LASTING_S, TURNS = 0.08, 3
"""How long a product keeps the GPU busy before it is timed under lasting load, and how often."""
Contest = Callable[[Sequence[Sequence[Call]]], list[float]]
"""Returns the microseconds of one call of each product; a product's calls have weights of their
own."""
MOST_SPARE = 2 * 2**30
"""Bytes that PyTorch may keep of graphs that were timed. Freeing them after each graph would take
longer than timing it."""
BUSY_CYCLES = 100_000
"""About 50 microseconds: the GPU is still busy when the host has submitted what is timed."""


def copies_needed(weight_bytes: int, cache_bytes: int) -> int:
    """Copies of the weights that exceed the cache several times."""
    needed = math.ceil(CACHE_MULTIPLE * cache_bytes / max(weight_bytes, 1))
    return min(max(needed, FEWEST_COPIES), MOST_COPIES)


def cache_bytes(device: torch.device) -> int:
    """Size of the GPU's L2 cache; none on a CPU."""
    if device.type != "cuda":
        return 0
    return int(torch.cuda.get_device_properties(device).L2_cache_size)


def copied(tensors: Sequence[torch.Tensor], count: int) -> list[list[torch.Tensor]]:
    """The tensors, and further copies of them."""
    further = [[tensor.clone() for tensor in tensors] for _ in range(count - 1)]
    return [list(tensors), *further]


def graph_time(calls: Sequence[Call]) -> float:
    """Microseconds of a call in a CUDA graph of all calls: the median of several replays."""
    replay = captured(enough_calls(calls, FEWEST_CALLS))
    times = [replay() for _ in range(REPEATS)]
    del replay
    _SPARE.give_back()
    return sorted(times)[REPEATS // 2]


@dataclass
class Spare:
    """Memory of graphs that are gone. Each graph has memory of its own, which no other one reuses.
    Of hundreds of graphs it would fill the GPU, and another process on it would find none."""

    kept: int = 0
    """Bytes that could not be given back last time: the rest of blocks that are in use."""

    def give_back(self) -> None:
        if self._bytes() > self.kept + MOST_SPARE:
            torch.cuda.empty_cache()
            self.kept = self._bytes()

    def _bytes(self) -> int:
        return int(torch.cuda.memory_reserved() - torch.cuda.memory_allocated())


_SPARE = Spare()


def captured(calls: Sequence[Call]) -> Callable[[], float]:
    """Replays a CUDA graph of all calls, and returns the microseconds of one of them."""
    stream = _warm_up(calls)
    graph = torch.cuda.CUDAGraph()
    # Not torch.cuda.graph(), which empties PyTorch's cache of memory for each of hundreds of
    # graphs. Other threads of vLLM may use the GPU meanwhile.
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for call in calls:
                call()
        finally:
            graph.capture_end()
    graph.replay()
    return lambda: _elapsed(graph.replay) / len(calls)


def event_time(calls: Sequence[Call]) -> float:
    """Microseconds of a call outside of graphs, with what the host does for each."""
    _warm_up(calls)
    return _eager_time(calls)


def lasting_times(products: Sequence[Sequence[Call]]) -> list[float]:
    """Microseconds of a call of each product while the GPU does nothing else for some time, as with
    a long prompt. Near its power limit a GPU lowers its clock, by how much depends on the kernel.
    The products take turns, so that a GPU that grows warm slows all of them."""
    for calls in products:
        _warm_up(calls)
    turns = [[_eager_time(calls, LASTING_S) for calls in products] for _ in range(TURNS)]
    return [sorted(times)[TURNS // 2] for times in zip(*turns, strict=True)]


def _eager_time(calls: Sequence[Call], seconds: float = 0.0) -> float:
    """Microseconds of a call: the median of the last rounds, after at least so many seconds."""
    every = enough_calls(calls, FEWEST_LONG_CALLS)

    def all_calls() -> None:
        for call in every:
            call()

    times, end = list[float](), time.monotonic() + seconds
    while time.monotonic() < end or len(times) < REPEATS:
        times.append(_elapsed(all_calls) / len(every))
    return sorted(times[-REPEATS:])[REPEATS // 2]


def enough_calls(calls: Sequence[Call], fewest: int) -> list[Call]:
    """All calls, one round after another: when a copy's turn comes again, the others have displaced
    it from the cache."""
    rounds = math.ceil(fewest / len(calls))
    return list(itertools.chain.from_iterable([calls] * rounds))


def _warm_up(calls: Sequence[Call]) -> torch.cuda.Stream:
    """Compiles and allocates outside of the graph, in a stream that can be captured. An error of
    the product is raised here, not while a graph is captured."""
    stream = _side_stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls[:2]:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    return stream


@cache
def _side_stream(device: int) -> torch.cuda.Stream:
    """One for all measurements: cuBLAS keeps 32 MiB of a Hopper's memory for each stream."""
    return torch.cuda.Stream(device)


def _elapsed(work: Callable[[], object]) -> float:
    """Microseconds on the GPU. It is kept busy until the work is submitted: else the time of the
    first launch would count."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(BUSY_CYCLES)
    start.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) * 1e3
