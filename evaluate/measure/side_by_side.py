"""Engines that stand loaded together on one device and are measured one at a time.

Starting an engine is mostly work of the CPU, so several start in little more time than one. vLLM
sizes its KV cache by what is free on the GPU, which fails while a neighbour grows: here each cache
has the size that the loads need, known before anything is started.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from conf.hardware import gpu_memory_gib
from conf.schema.load import KV_CACHE_SIZE, MEMORY_SHARE, ScenarioConfig

BLOCK = 128  # tokens; vLLM gives them to requests in blocks of 16 to 128, by its back end
AT_ONCE = "max_num_seqs"
MOST_AT_ONCE = 1024  # requests; as many as vLLM runs at once on a large GPU unless told otherwise
LEAST_UTILIZATION = 0.01  # vLLM asks that this much is free when it starts
# What one engine holds beside weights and KV cache: activations, graphs, libraries.
WORKING_GIB = 8.0
USABLE = 0.95  # of the GPU's memory
CACHE_ROOT = "VLLM_CACHE_ROOT"
Item = TypeVar("Item")


def cache_tokens(scenarios: Iterable[ScenarioConfig], context: int, at_once: int) -> int:
    """Tokens that the KV cache must hold so that no request of any load waits for room."""
    needed = [_blocks(context)]
    for scenario in scenarios:
        running = min(scenario.concurrency or scenario.count, at_once)
        needed.append(running * _blocks(scenario.tokens))
    return (max(needed) + 1) * BLOCK  # one block is vLLM's own


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK)


def engine_options(given: dict[str, Any], cache_bytes: int) -> dict[str, Any]:
    """What an engine needs so that its start does not depend on its neighbours, under what was
    asked for."""
    return {KV_CACHE_SIZE: cache_bytes, MEMORY_SHARE: LEAST_UTILIZATION} | given


def room_gib() -> float | None:
    """Memory of a GPU that engines may share; none without a GPU."""
    cards = gpu_memory_gib()
    return min(total for total, _ in cards) * USABLE if cards else None


def groups(
    items: list[Item], most: int, needs_gib: Callable[[Item], float], room: float | None
) -> list[list[Item]]:
    """The items in their order, as many together as are allowed and fit."""
    found: list[list[Item]] = []
    used = 0.0
    for item in items:
        need = needs_gib(item)
        full = not found or len(found[-1]) == most or (room is not None and used + need > room)
        if full:
            found.append([])
            used = 0.0
        found[-1].append(item)
        used += need
    return found


def variables(place: int) -> dict[str, str]:
    """The environment of the engine at a place in its group: compiled code is kept apart, because
    two that compile at once would write the same files."""
    if place == 0:
        return {}
    usual = os.environ.get(CACHE_ROOT)
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    root = Path(usual).expanduser() if usual else caches / "vllm"
    return {CACHE_ROOT: str(root / f"beside-{place}")}
