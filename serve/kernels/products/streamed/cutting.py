"""How weights are cut into work for kernels that stream them: launches, and candidates by shape."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch

from serve.kernels.products.cuda_kernels.streaming import MOST_SHARED_BYTES, STEP, TILE, Cut
from serve.kernels.products.launch import options_of
from serve.kernels.products.product import Options, Unusable

PROCESSORS = 132
"""Of an H100 or H200; for guesses only."""
SHARED_BYTES_OF_PROCESSOR = 228 << 10
RESERVED_BYTES = 1024  # of each block
MOST_CUTS, MOST_OVERLAPPING = 12, 4
"""Candidates, and how many of them are also launched so that they overlap the kernel before."""
NARROW, MOST_TOKENS = 8, 16
"""Tokens of one product of a tensor core, and of two."""
HOPPER = (9, 0)
TYPES = {torch.bfloat16: "bf16", torch.float16: "f16"}
SPLITS = (1, 2, 4, 8)
# Costs in clock cycles of a multiprocessor: coarse, to order candidates only.
WEIGHT_BYTES_PER_CYCLE, TOKEN_BYTES_PER_CYCLE = 17.0, 40.0
BARRIER, CLUSTER = 150, 400
BYTES_IN_FLIGHT = 48 << 10
FEW_WARPS = 0.8
"""How much one warp alone would be slower: nothing hides its latencies."""

Shape = tuple[int, int, int, int]
"""Warps, tiles of 16 rows, steps under way, blocks for each multiprocessor."""


@dataclass(frozen=True)
class Launch:
    """How a kernel is launched for a shape and a number of tokens."""

    blocks: int
    rounds: int
    """Tiles of rows that a block takes one after the other."""
    resident: int
    """Blocks that a multiprocessor runs at once."""
    shared_bytes: int


@cache
def processors_of(device: int) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def check_device(device: torch.device) -> None:
    """Raises Unusable where the kernels do not run."""
    if device.type != "cuda":
        raise Unusable("needs an NVIDIA GPU")
    if torch.cuda.get_device_capability(device) < HOPPER:
        raise Unusable("needs a GPU of compute capability 9.0 or higher")


def aligned(x: torch.Tensor) -> torch.Tensor:
    """Activations whose rows the kernels can read 16 bytes at once."""
    if x.stride(1) != 1 or x.stride(0) % 8:
        x = x.contiguous()
    return x.clone() if x.data_ptr() % 16 else x


def steps_of(columns: int) -> int:
    return -(-columns // STEP)


def narrows_of(tokens: int) -> int:
    """Products for 8 tokens each."""
    return -(-tokens // NARROW)


def launch_of(cut: Cut, rows: int, columns: int, tokens: int, processors: int) -> Launch:
    """As many blocks as run at once, or fewer if that many need no more rounds."""
    steps, parts = steps_of(columns), -(-rows // (TILE * cut.tiles))
    for sets in (1, 2):
        shared_bytes = cut.shared_bytes(tokens, steps, sets)
        room = SHARED_BYTES_OF_PROCESSOR // (shared_bytes + RESERVED_BYTES)
        resident = max(1, min(cut.resident, room))
        rounds = -(-parts // max(1, processors * resident // cut.split))
        if rounds <= sets:
            break
    return Launch(-(-parts // rounds) * cut.split, rounds, resident, shared_bytes)


def launchable(
    shapes: tuple[Shape, ...], bits: int, rows: int, columns: int, tokens: int
) -> Iterator[tuple[float, Cut]]:
    """All ways to cut a weight, each with a coarse estimate of its cycles."""
    steps = steps_of(columns)
    for shape in shapes:
        warps, tiles, prefetch, _ = shape
        for split in SPLITS:
            share, cut = -(-steps // split), Cut(*shape, split)
            launch = launch_of(cut, rows, columns, tokens, PROCESSORS)
            is_uneven = share * (split - 1) >= steps or share < warps
            if launch.shared_bytes > MOST_SHARED_BYTES or (split > 1 and is_uneven):
                continue
            on_each = min(float(launch.resident), launch.blocks / PROCESSORS)
            step_bytes = tiles * TILE * STEP * bits / 8
            # A lack of loads under way slows all of them.
            under_way = on_each * min(prefetch * warps, share) * step_bytes
            slots = launch.rounds * cut.slots(steps) * warps
            weights = on_each * slots * step_bytes / WEIGHT_BYTES_PER_CYCLE
            weights *= max(1.0, BYTES_IN_FLIGHT / under_way) * (1 + FEW_WARPS / (on_each * warps))
            activations = on_each * tokens * share * STEP * 2 / TOKEN_BYTES_PER_CYCLE
            joining = launch.rounds * BARRIER + (CLUSTER if split > 1 else 0)
            yield weights + activations + joining, cut


def best_guesses(
    shapes: tuple[Shape, ...], bits: int, rows: int, columns: int, tokens: int
) -> list[Cut]:
    """The best guess of each shape first: neighbours in the order of estimates are much alike."""
    seen: dict[Shape, int] = {}
    turns: list[tuple[int, float, Cut]] = []
    ways = launchable(shapes, bits, rows, columns, tokens)
    for cycles, cut in sorted(ways, key=lambda pair: pair[0]):
        shape = (cut.warps, cut.tiles, cut.prefetch, cut.resident)
        seen[shape] = seen.get(shape, 0) + 1
        turns.append((seen[shape], cycles, cut))
    return [cut for *_, cut in sorted(turns, key=lambda turn: turn[:2])]


def candidates(
    shapes: tuple[Shape, ...], bits: int, rows: int, columns: int, tokens: int
) -> list[Options]:
    """Launch options to measure, the best guess first."""
    room = NARROW if tokens <= NARROW else MOST_TOKENS
    return [
        options_of(
            WARPS=cut.warps, ROWS=cut.tiles * TILE, PREFETCH=cut.prefetch, RESIDENT=cut.resident,
            SPLIT=cut.split, TOKENS=room, PDL=overlaps,
        )
        for place, cut in enumerate(best_guesses(shapes, bits, rows, columns, tokens)[:MOST_CUTS])
        for overlaps in ((0, 1) if place < MOST_OVERLAPPING else (0,))
    ]  # fmt: skip
