"""Products of 1 to 16 tokens with packed INT4 or INT8 weights, which go straight into registers."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch

from serve.kernels.products.cuda_kernels.compiled import Kernel
from serve.kernels.products.cuda_kernels.streamed_packed import MOST_SHARED_BYTES, NAME, Variant
from serve.kernels.products.launch import options_of
from serve.kernels.products.product import Inputs, Options, Product, Unusable, Weight
from serve.kernels.products.streamed.packed_layout import STEP, TILE, Packed, packed, steps_of

PROCESSORS = 132
"""Of an H100 or H200; for guesses only."""
SHARED_BYTES_OF_PROCESSOR = 228 << 10
RESERVED_BYTES = 1024  # of each block
MOST_SHAPES, MOST_OVERLAPPING = 12, 4
"""Candidates, and how many of them are also launched so that they overlap the kernel before."""
NARROW = 8
"""Tokens of one product of a tensor core."""
HOPPER = (9, 0)
TYPES = {torch.bfloat16: "bf16", torch.float16: "f16"}
# Warps, tiles of 16 rows, steps under way, blocks for each multiprocessor. Each has 64 to 96 KiB of
# INT4 weights under way, and registers for that.
SHAPES = (
    (8, 1, 4, 3), (8, 1, 4, 2), (8, 1, 2, 4), (8, 2, 2, 2), (16, 1, 2, 2), (4, 1, 4, 5),
    (8, 2, 1, 3), (8, 1, 2, 3), (16, 2, 2, 1), (16, 1, 4, 1), (16, 1, 1, 2), (8, 2, 2, 1),
    (8, 4, 2, 1), (8, 4, 1, 2),
)  # fmt: skip
SPLITS = (1, 2, 4, 8)
# Costs in clock cycles of a multiprocessor: coarse, to order candidates only.
WEIGHT_BYTES_PER_CYCLE, TOKEN_BYTES_PER_CYCLE = 17.0, 40.0
BARRIER, CLUSTER = 150, 400
BYTES_IN_FLIGHT = 48 << 10
FEW_WARPS = 0.8
"""How much one warp alone would be slower: nothing hides its latencies."""


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
def kernel_of(variant: Variant, device: int) -> Kernel:
    """A kernel is loaded for one GPU."""
    return Kernel(variant.source(), NAME)


@cache
def processors_of(device: int) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def variant_of(weight: Packed, options: Options, tokens: int, dtype: torch.dtype) -> Variant:
    """The kernel. Steps under way are counted for INT4; those of INT8 have twice the bytes."""
    chosen = dict(options)
    scale_dtype = weight.row_scales.dtype if weight.groups_of_step else torch.bfloat16
    return Variant(
        warps=chosen["WARPS"], tiles=chosen["ROWS"] // TILE,
        prefetch=max(1, chosen["PREFETCH"] * 4 // weight.bits),
        resident=chosen["RESIDENT"], split=chosen["SPLIT"], bits=weight.bits,
        groups=weight.groups_of_step, zeros=weight.has_zeros,
        narrows=-(-max(tokens, chosen["TOKENS"]) // NARROW), dtype=TYPES[dtype],
        scale_dtype=TYPES[scale_dtype],
    )  # fmt: skip


def launch_of(variant: Variant, rows: int, columns: int, tokens: int, processors: int) -> Launch:
    """As many blocks as run at once, or fewer if that many need no more rounds."""
    steps, parts = steps_of(columns), -(-rows // (TILE * variant.tiles))
    for sets in (1, 2):
        shared_bytes = variant.shared_bytes(tokens, steps, sets)
        room = SHARED_BYTES_OF_PROCESSOR // (shared_bytes + RESERVED_BYTES)
        resident = max(1, min(variant.resident, room))
        rounds = -(-parts // max(1, processors * resident // variant.split))
        if rounds <= sets:
            break
    return Launch(-(-parts // rounds) * variant.split, rounds, resident, shared_bytes)


def launchable(rows: int, columns: int, tokens: int) -> Iterator[tuple[float, Variant]]:
    """All ways to cut a weight, each with a coarse estimate of its cycles for INT4 weights."""
    steps = steps_of(columns)
    for warps, tiles, prefetch, resident in SHAPES:
        for split in SPLITS:
            share = -(-steps // split)
            variant = Variant(
                warps, tiles, prefetch, resident, split, 4, 1, False, 1, "bf16", "bf16"
            )
            launch = launch_of(variant, rows, columns, tokens, PROCESSORS)
            is_uneven = share * (split - 1) >= steps or share < warps
            if launch.shared_bytes > MOST_SHARED_BYTES or (split > 1 and is_uneven):
                continue
            on_each = min(float(launch.resident), launch.blocks / PROCESSORS)
            step_bytes = tiles * TILE * STEP / 2
            # A lack of loads under way slows all of them.
            under_way = on_each * min(prefetch * warps, share) * step_bytes
            slots = launch.rounds * variant.slots(steps) * warps
            weights = on_each * slots * step_bytes / WEIGHT_BYTES_PER_CYCLE
            weights *= max(1.0, BYTES_IN_FLIGHT / under_way) * (1 + FEW_WARPS / (on_each * warps))
            activations = on_each * tokens * share * STEP * 2 / TOKEN_BYTES_PER_CYCLE
            joining = launch.rounds * BARRIER + (CLUSTER if split > 1 else 0)
            yield weights + activations + joining, variant


def best_guesses(rows: int, columns: int, tokens: int) -> list[Variant]:
    """The best guess of each shape first: neighbours in the order of estimates are much alike."""
    seen: dict[tuple[int, int, int, int], int] = {}
    turns: list[tuple[int, float, Variant]] = []
    for cycles, variant in sorted(launchable(rows, columns, tokens), key=lambda pair: pair[0]):
        shape = (variant.warps, variant.tiles, variant.prefetch, variant.resident)
        seen[shape] = seen.get(shape, 0) + 1
        turns.append((seen[shape], cycles, variant))
    return [variant for *_, variant in sorted(turns, key=lambda turn: turn[:2])]


class StreamedPacked(Product):
    """INT4 or INT8 words, symmetric or with zero points, groups or channels."""

    name = "streamed_packed"
    most = 16
    compiles = True

    def options(self, rows: int, columns: int, tokens: int) -> list[Options]:
        room = NARROW if tokens <= NARROW else self.most
        return [
            options_of(
                WARPS=variant.warps, ROWS=variant.tiles * TILE, PREFETCH=variant.prefetch,
                RESIDENT=variant.resident, SPLIT=variant.split, TOKENS=room, PDL=overlaps,
            )
            for place, variant in enumerate(best_guesses(rows, columns, tokens)[:MOST_SHAPES])
            for overlaps in ((0, 1) if place < MOST_OVERLAPPING else (0,))
        ]  # fmt: skip

    def prepare(self, weight: Weight) -> list[torch.Tensor]:
        device = weight.codes.device
        if device.type != "cuda":
            raise Unusable("needs an NVIDIA GPU")
        if torch.cuda.get_device_capability(device) < HOPPER:
            raise Unusable("needs a GPU of compute capability 9.0 or higher")
        if not self.options(weight.rows, weight.columns, self.most):
            raise Unusable(f"{weight.columns} columns of 16 tokens exceed the shared memory")
        return packed(weight).tensors

    def multiply(
        self, inputs: Inputs, tensors: list[torch.Tensor], options: Options
    ) -> torch.Tensor:
        weight, x = Packed(*tensors), inputs.plain
        if x.stride(1) != 1 or x.stride(0) % 8 or x.data_ptr() % 16:
            x = x.contiguous()  # the kernel reads 16 bytes at once
        tokens, columns = x.shape
        rows, device = weight.rows, x.device.index or 0
        variant = variant_of(weight, options, tokens, x.dtype)
        launch = launch_of(variant, rows, columns, tokens, processors_of(device))
        if launch.shared_bytes > MOST_SHARED_BYTES:  # options of a plan for fewer tokens
            return self.multiply(inputs, tensors, self.options(rows, columns, tokens)[0])
        out = torch.empty((tokens, rows), dtype=x.dtype, device=x.device)
        kernel_of(variant, device).launch(
            launch.blocks, variant.warps * 32, launch.shared_bytes,
            (x, weight.codes, weight.groups, weight.row_scales, out),
            (tokens, x.stride(0), columns, rows, weight.codes.shape[0], steps_of(columns)),
            overlaps=bool(dict(options)["PDL"]),
        )  # fmt: skip
        return out
