"""How weights are cut into work for the kernel of warp groups: candidates, and launches."""

import itertools
from collections.abc import Iterator
from functools import cache

import torch

from serve.kernels.products.cuda_kernels.compiled import Kernel
from serve.kernels.products.cuda_kernels.streaming import MOST_SHARED_BYTES, STEP, TILE
from serve.kernels.products.cuda_kernels.warpgroup.variant import (
    ARCHITECTURE,
    NAME,
    SLOTS,
    STAGE_BYTES,
    WARPS_OF_GROUP,
    Numbers,
    Variant,
)
from serve.kernels.products.launch import options_of
from serve.kernels.products.product import Options, Unusable
from serve.kernels.products.streamed.cutting import (
    HOPPER,
    PROCESSORS,
    SPLITS,
    check_device,
    steps_of,
)
from serve.kernels.products.streamed.packed_layout import Packed

ROWS_OF_GROUP = WARPS_OF_GROUP * TILE
MOST_GROUPS = {16: 4, 32: 4, 64: 3, 128: 3}
"""Groups of warps by the room for tokens: with more, the compiler spills registers."""
COPIERS = {1: SLOTS, 2: 2 * SLOTS}
STAGES, TEAMS = (4, 2), {1: (1, 2), 2: (1,)}
"""Copiers and teams by the bytes of an activation. Teams of blocks gain nothing with two copiers
for each slot."""
FEWER_STAGES = {1: 1.1, 2: 0.97}
"""Neighbours that differ in stages only are much alike: the one that was mostly faster first."""
MOST_CUTS, MOST_OVERLAPPING = 8, 3
"""Candidates, and how many of them are also launched so that they overlap the kernel before."""
IN_CLUSTERS = 128
"""Multiprocessors that larger clusters fit into: they do not cross the parts of the GPU."""
# Costs in clock cycles of a multiprocessor: coarse, to order candidates only.
MEMORY_BYTES_PER_CYCLE, CACHE_BYTES_PER_CYCLE = 2300.0, 3000.0
"""Of all multiprocessors."""
MOST_BYTES_PER_CYCLE = 26.0
BYTES_IN_FLIGHT = 48 << 10
BEGIN, CLUSTER = 2000, 800


def room_of(tokens: int) -> int:
    """Tokens that a kernel is compiled for."""
    return next(room for room in MOST_GROUPS if room >= tokens)


@cache
def kernel_of(variant: Variant, device: int) -> Kernel:
    """A kernel is loaded for one GPU."""
    return Kernel(variant.source(), NAME, ARCHITECTURE)


def blocks_of(variant: Variant, rows: int) -> int:
    """Whole clusters."""
    parts = -(-rows // variant.rows)
    return -(-parts // variant.team) * variant.team * variant.split


def cycles_of(variant: Variant, rows: int, columns: int, tokens: int) -> float:
    """A coarse estimate of the time of a product."""
    blocks, groups, numbers = blocks_of(variant, rows), variant.groups, variant.numbers
    share = -(-steps_of(columns) // variant.split)
    room = PROCESSORS if variant.split * variant.team <= SPLITS[1] else IN_CLUSTERS
    active = min(blocks, room)
    code_bytes = variant.rows * STEP * numbers.bits / 8
    token_bytes = tokens * STEP * numbers.x_bytes / variant.team
    memory = min(MEMORY_BYTES_PER_CYCLE / active, MOST_BYTES_PER_CYCLE)
    cached = min(CACHE_BYTES_PER_CYCLE / active, MOST_BYTES_PER_CYCLE)
    under_way = min(share * code_bytes, variant.warps * variant.stages * STAGE_BYTES)
    step = max(
        code_bytes / memory * max(1.0, BYTES_IN_FLIGHT / under_way),
        (code_bytes + token_bytes) / cached,
        groups * (180 + variant.tokens / 2) + variant.tokens / 2,  # instructions
        groups * 2 * numbers.x_bytes * max(variant.tokens, 32),  # tensor cores
    )
    sums = tokens * variant.rows * 4 / 32
    is_shallow = variant.stages < STAGES[0] and share * code_bytes > under_way
    joining = sums * (1 if variant.split == 1 else 3) + (CLUSTER if variant.split > 1 else 0)
    alike = FEWER_STAGES[numbers.x_bytes] if is_shallow else 1.0
    return alike * -(-blocks // room) * (BEGIN + share * step + joining)


def variants(numbers: Numbers, rows: int, columns: int, tokens: int) -> Iterator[Variant]:
    """All ways to cut a weight. Each block that shares columns has some."""
    steps, room = steps_of(columns), room_of(tokens)
    for groups in range(1, MOST_GROUPS[room] + 1):
        if groups > 1 and (groups - 1) * ROWS_OF_GROUP >= rows:
            continue
        for split in SPLITS:
            share = -(-steps // split)
            if share * (split - 1) >= steps:
                continue
            enough = [stages for stages in STAGES if share > stages] or [STAGES[-1]]
            teams = [team for team in TEAMS[numbers.x_bytes] if split * team <= SPLITS[-1]]
            for stages, team in itertools.product(enough, teams):
                copiers = COPIERS[numbers.x_bytes]
                variant = Variant(groups, copiers, stages, split, team, room, numbers)
                if variant.shared_bytes(tokens, steps) <= MOST_SHARED_BYTES:
                    yield variant


def candidates(numbers: Numbers, rows: int, columns: int, tokens: int) -> list[Options]:
    """Launch options to measure, the best guess first; none where no cut fits."""
    ordered = sorted(
        variants(numbers, rows, columns, tokens),
        key=lambda variant: cycles_of(variant, rows, columns, tokens),
    )
    return [
        options_of(
            ROWS=variant.rows, STAGES=variant.stages, SPLIT=variant.split,
            TEAM=variant.team, TOKENS=variant.tokens, PDL=overlaps,
        )
        for place, variant in enumerate(ordered[:MOST_CUTS])
        for overlaps in ((0, 1) if place < MOST_OVERLAPPING else (0,))
    ]  # fmt: skip


def variant_of(numbers: Numbers, options: Options, tokens: int) -> Variant:
    """The kernel of these options, with room for the tokens."""
    chosen = dict(options)
    return Variant(
        groups=chosen["ROWS"] // ROWS_OF_GROUP, copiers=COPIERS[numbers.x_bytes],
        stages=chosen["STAGES"], split=chosen["SPLIT"], team=chosen["TEAM"],
        tokens=room_of(max(tokens, chosen["TOKENS"])), numbers=numbers,
    )  # fmt: skip


def check_hopper(device: torch.device) -> None:
    """Raises Unusable where the kernel does not run."""
    check_device(device)
    if torch.cuda.get_device_capability(device) != HOPPER:
        raise Unusable("runs on Hopper only")


def product_of(
    numbers: Numbers,
    options: Options,
    x: torch.Tensor,
    weight: Packed,
    scales: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Launches the kernel. `scales`: of tokens, or of rows."""
    tokens, steps = x.shape[0], weight.codes.shape[1]
    variant = variant_of(numbers, options, tokens)
    fits = variant.shared_bytes(tokens, steps) <= MOST_SHARED_BYTES
    if variant.groups > MOST_GROUPS[variant.tokens] or not fits:  # a plan for fewer tokens
        first = candidates(numbers, weight.rows, steps * STEP, tokens)[0]
        variant = variant_of(numbers, first, tokens)
    out = torch.empty((tokens, weight.rows), dtype=dtype, device=x.device)
    kernel_of(variant, x.device.index or 0).launch(
        blocks_of(variant, weight.rows), variant.threads, variant.shared_bytes(tokens, steps),
        (x, weight.codes, weight.groups, weight.row_scales if scales is None else scales, out),
        (tokens, x.stride(0) * x.element_size(), weight.rows, weight.codes.shape[0], steps,
         int(scales is not None)),
        overlaps=bool(dict(options)["PDL"]),
    )  # fmt: skip
    return out
