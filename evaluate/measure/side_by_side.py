"""Engines that are loaded together on one device. Those that are timed take turns.

Starting an engine mostly uses the CPU, so several start in little more time than one. vLLM sizes
its KV cache by the free GPU memory, which fails while another engine is loading. Here each cache
has the size that the workloads need, computed before anything is started.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from conf.hardware import gpu_memory_gib
from conf.schema.load import (
    KV_CACHE_SIZE,
    MEMORY_SHARE,
    SHARE_BESIDE_OTHERS,
    EngineOptions,
    ScenarioConfig,
)
from conf.terminal import say

BLOCK = 128  # tokens; vLLM's blocks have 16 to 128, depending on the attention backend
AT_ONCE = "max_num_seqs"
MOST_AT_ONCE = 1024  # requests; vLLM's default on a large GPU
# Memory of one engine beside weights and KV cache: activations, graphs, libraries. Engines of
# Qwen3-8B with 16,384 tokens at once took 3.6 to 4.8 on an H200.
WORKING_GIB = 6.0
USABLE = 0.95  # of the GPU's memory
CACHE_ROOT = "VLLM_CACHE_ROOT"
MODEL_INFOS = "modelinfos"
Item = TypeVar("Item")


def cache_tokens(scenarios: Iterable[ScenarioConfig], context: int, at_once: int) -> int:
    """Tokens that the KV cache must hold so that no request waits for space in it."""
    needed = [tokens_of_requests(1, context)]
    for scenario in scenarios:
        running = min(scenario.concurrency or scenario.count, at_once)
        needed.append(tokens_of_requests(running, scenario.tokens))
    return max(needed)


def tokens_of_requests(requests: int, tokens: int) -> int:
    """Tokens of a KV cache that holds so many requests of this length."""
    blocks = requests * -(-tokens // BLOCK)
    return (blocks + 1) * BLOCK  # vLLM reserves one block


def engine_options(options: EngineOptions, cache_bytes: int) -> EngineOptions:
    """The engine options, with defaults that make a start independent of other engines."""
    return {KV_CACHE_SIZE: cache_bytes, MEMORY_SHARE: SHARE_BESIDE_OTHERS} | options


def room_gib() -> float | None:
    """Memory of a GPU that engines may share; None without a GPU."""
    cards = gpu_memory_gib()
    return min(total for total, _ in cards) * USABLE if cards else None


def groups(
    items: list[Item], group_size: int, needs_gib: Callable[[Item], float], room: float | None
) -> list[list[Item]]:
    """Splits the items into groups that respect the group size and fit into memory. Large items are
    placed first, which needs fewer groups. Groups, and items in them, keep their order."""
    item_groups: list[list[int]] = []
    needs = [needs_gib(item) for item in items]
    for place in sorted(range(len(items)), key=lambda place: (-needs[place], place)):
        for group in item_groups:
            used = sum(needs[other] for other in group)
            if len(group) < group_size and (room is None or used + needs[place] <= room):
                group.append(place)
                break
        else:
            item_groups.append([place])
    return [[items[place] for place in group] for group in sorted(map(sorted, item_groups))]


def fitting_groups(
    batches: Sequence[list[Item]], side_by_side: int, needs_gib: Callable[[Item], float]
) -> list[list[Item]]:
    """The groups of engines that fit on this machine's GPU. Each batch has groups of its own,
    unless all together need fewer. Says where fewer fit than were requested."""
    item_groups = _batch_groups(batches, side_by_side, needs_gib, room_gib())
    largest = max(map(len, item_groups), default=0)
    if largest < max(map(len, _batch_groups(batches, side_by_side, needs_gib, None)), default=0):
        fitting = "engines fit on the GPU at once" if largest > 1 else "engine fits on the GPU"
        say(f"side_by_side={side_by_side}: {largest} {fitting}")
    return item_groups


def _batch_groups(
    batches: Sequence[list[Item]],
    group_size: int,
    needs_gib: Callable[[Item], float],
    room: float | None,
) -> list[list[Item]]:
    together = groups([item for batch in batches for item in batch], group_size, needs_gib, room)
    apart = [group for batch in batches for group in groups(batch, group_size, needs_gib, room)]
    return apart if len(apart) <= len(together) else together


def variables(names: Sequence[str], place: int) -> dict[str, str]:
    """Environment variables of one of the engines that are loaded together. Each has a compile
    cache of its own, because two engines that compile at once would write the same files. It is
    that of its checkpoint, so that a later start beside other engines finds it. An engine alone has
    vLLM's usual cache.

    `names`: of the checkpoints, one for each engine."""
    if len(names) == 1:
        return {}
    usual = os.environ.get(CACHE_ROOT)
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    root = Path(usual).expanduser() if usual else caches / "vllm"
    earlier = names[:place].count(names[place])
    folder = _folder_of(names[place]) + (f"~{earlier + 1}" if earlier else "")
    return {CACHE_ROOT: str(root / "beside" / folder)}


def share_model_infos(own_variables: Mapping[str, str]) -> None:
    """Links the descriptions of model classes in an engine's own cache to those of the usual one.
    vLLM imports a model in another process to make one, which took 24 to 28 s where five engines
    did so at once on 16 cores. It writes each as a whole, so engines may share them.

    `own_variables`: those of `variables`."""
    if CACHE_ROOT not in own_variables:
        return
    folder = Path(own_variables[CACHE_ROOT])
    usual = folder.parent.parent / MODEL_INFOS
    with suppress(OSError):  # without the link, vLLM makes them again
        usual.mkdir(parents=True, exist_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MODEL_INFOS).symlink_to(os.path.relpath(usual, folder), target_is_directory=True)


def _folder_of(name: str) -> str:
    """The name as that of a folder; other names have other folders."""
    usable = re.sub(r"[^\w.-]", "_", name)
    return usable if usable == name else f"{usable}~{hashlib.sha256(name.encode()).hexdigest()[:8]}"
