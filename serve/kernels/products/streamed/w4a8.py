"""Products of 9 to 128 FP8 tokens with packed INT4 weights in groups of 128, on Hopper."""

import itertools
from collections.abc import Iterator
from functools import cache

import torch

from serve.kernels.products.cuda_kernels.compiled import Kernel
from serve.kernels.products.cuda_kernels.streaming import MOST_SHARED_BYTES, STEP, TILE
from serve.kernels.products.cuda_kernels.warpgroup.streamed_w4a8 import (
    ARCHITECTURE,
    NAME,
    SLOTS,
    WARPS_OF_GROUP,
    Variant,
)
from serve.kernels.products.launch import options_of
from serve.kernels.products.product import Inputs, Options, Product, Unusable, Weight
from serve.kernels.products.streamed.cutting import (
    HOPPER,
    PROCESSORS,
    SPLITS,
    TYPES,
    check_device,
    steps_of,
)
from serve.kernels.products.streamed.packed_layout import Packed, packed

FP8 = torch.float8_e4m3fn
ROWS_OF_GROUP = WARPS_OF_GROUP * TILE
MOST_GROUPS = {16: 4, 32: 4, 64: 3, 128: 3}
"""Groups of warps by the room for tokens: with more, the compiler spills registers."""
COPIERS = SLOTS
STAGES, TEAMS = (4, 2), (1, 2)
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
    blocks, groups = blocks_of(variant, rows), variant.groups
    share = -(-steps_of(columns) // variant.split)
    room = PROCESSORS if variant.split * variant.team <= SPLITS[1] else IN_CLUSTERS
    active = min(blocks, room)
    code_bytes, token_bytes = variant.rows * STEP / 2, tokens * STEP / variant.team
    memory = min(MEMORY_BYTES_PER_CYCLE / active, MOST_BYTES_PER_CYCLE)
    cached = min(CACHE_BYTES_PER_CYCLE / active, MOST_BYTES_PER_CYCLE)
    under_way = min(share, 2 * variant.stages) * code_bytes
    step = max(
        code_bytes / memory * max(1.0, BYTES_IN_FLIGHT / under_way),
        (code_bytes + token_bytes) / cached,
        groups * (180 + variant.tokens / 2) + variant.tokens / 2,  # instructions
        groups * 2 * max(variant.tokens, 32),  # tensor cores
    )
    sums = tokens * variant.rows * 4 / 32
    # Neighbours that differ in stages only are much alike: the deeper one first.
    alike = 1.1 if variant.stages < STAGES[0] and share > 2 * variant.stages else 1.0
    joining = sums * (1 if variant.split == 1 else 3) + (CLUSTER if variant.split > 1 else 0)
    return alike * -(-blocks // room) * (BEGIN + share * step + joining)


def variants(rows: int, columns: int, tokens: int) -> Iterator[Variant]:
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
            teams = [team for team in TEAMS if split * team <= SPLITS[-1]]
            for stages, team in itertools.product(enough, teams):
                variant = Variant(groups, COPIERS, stages, split, team, room, "bf16", "bf16")
                if variant.shared_bytes(tokens, steps) <= MOST_SHARED_BYTES:
                    yield variant


class StreamedW4A8(Product):
    """Reads the same copy of the weights as `StreamedPacked`. Group scales stay as they are."""

    name = "streamed_w4a8"
    fewest = 9
    most = 128
    reads_rounded = True
    compiles = True

    def options(self, rows: int, columns: int, tokens: int) -> list[Options]:
        ordered = sorted(
            variants(rows, columns, tokens),
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

    def prepare(self, weight: Weight) -> list[torch.Tensor]:
        check_device(weight.codes.device)
        if torch.cuda.get_device_capability(weight.codes.device) != HOPPER:
            raise Unusable("runs on Hopper only")
        check(weight)
        return packed(weight).tensors

    def multiply(
        self, inputs: Inputs, tensors: list[torch.Tensor], options: Options
    ) -> torch.Tensor:
        if inputs.rounded is None:
            raise ValueError("streamed_w4a8 takes rounded activations")
        weight, x = Packed(*tensors), aligned(inputs.rounded)
        tokens, steps = x.shape[0], weight.codes.shape[1]
        variant = variant_of(weight, options, tokens, inputs.plain.dtype)
        if variant.groups > MOST_GROUPS[variant.tokens]:  # options of a plan for fewer tokens
            return self.multiply(
                inputs, tensors, self.options(weight.rows, steps * STEP, tokens)[0]
            )
        out = torch.empty((tokens, weight.rows), dtype=inputs.plain.dtype, device=x.device)
        scales = weight.row_scales if inputs.scales is None else inputs.scales.contiguous()
        kernel_of(variant, x.device.index or 0).launch(
            blocks_of(variant, weight.rows), variant.threads, variant.shared_bytes(tokens, steps),
            (x, weight.codes, weight.groups, scales, out),
            (tokens, x.stride(0), weight.rows, weight.codes.shape[0], steps,
             int(inputs.scales is not None)),
            overlaps=bool(dict(options)["PDL"]),
        )  # fmt: skip
        return out


def variant_of(weight: Packed, options: Options, tokens: int, dtype: torch.dtype) -> Variant:
    """The kernel for a layer, with room for the tokens."""
    chosen = dict(options)
    return Variant(
        groups=chosen["ROWS"] // ROWS_OF_GROUP, copiers=COPIERS, stages=chosen["STAGES"],
        split=chosen["SPLIT"], team=chosen["TEAM"],
        tokens=room_of(max(tokens, chosen["TOKENS"])), dtype=TYPES[dtype],
        scale_dtype=TYPES[weight.row_scales.dtype],
    )  # fmt: skip


def check(weight: Weight) -> None:
    """Raises Unusable where the kernel cannot read the weight."""
    if weight.bits != 4 or weight.zeros is not None:
        raise Unusable("takes symmetric 4-bit weights only")
    if weight.group_size != STEP:
        raise Unusable(f"takes groups of {STEP}, not {weight.group_size}")


def aligned(x: torch.Tensor) -> torch.Tensor:
    """FP8 activations whose rows the kernel can read 16 bytes at once."""
    if x.dtype != FP8:
        raise ValueError(f"takes FP8 activations, not {x.dtype}")
    if x.stride(1) != 1 or x.stride(0) % 16:
        x = x.contiguous()
    return x.clone() if x.data_ptr() % 16 else x
