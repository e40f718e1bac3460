"""Products of a batch of tokens with packed INT4 or INT8 weights, which the tensor cores' operand
is made of in registers. They read the words as the checkpoint stores them."""

import itertools
import math
from dataclasses import dataclass

import torch

from serve.kernels.products.launch import (
    MULTIPROCESSORS,
    SHARED_MEMORY,
    SPLITS,
    Tiles,
    can_split,
    launch_arguments,
    spread_out,
)
from serve.kernels.products.product import Inputs, Options, Product, Unusable, Weight
from serve.kernels.products.streamed.cutting import HOPPER
from serve.kernels.products.unpack import check_packed

COLUMNS = (128, 64)
"""Of a tile: no more than a group has."""
LEAST_COLUMNS = 32
SHAPES = {
    32: ((64, 4), (128, 4), (128, 8), (256, 8)),
    64: ((128, 8), (64, 4), (256, 8)),
    128: ((128, 8), (64, 4)),
    256: ((64, 8),),
}
"""Rows of a tile and warps, by its tokens. With more rows the compiler runs out of registers."""
STAGES = (3, 4, 5)
MOST_OPTIONS = 6
FEWEST_ROWS = 64
"""Of a tile, as the tensor cores take them."""
REGISTERS, OTHER_REGISTERS = 65536, 60
"""Of a multiprocessor; and of a thread, beside its sums."""
WEIGHT_BYTES = 0.75
"""For the estimate: between INT4 and INT8."""
STEP_CLOCKS = 300
"""Barriers and latencies of a step."""


class Batched(Product):
    """INT4 or INT8 words, symmetric or with zero points, groups or channels."""

    name = "batched"
    fewest = 17
    most = 512
    compiles = True

    def options(self, rows: int, columns: int, tokens: int) -> list[Options]:
        # The group is not known here. Tiles that are wider are narrowed when they run.
        first, *others = _cuts(rows, columns, tokens)[: MOST_OPTIONS - 1]
        return [first.options(), first.options(2), *(cut.options() for cut in others)]

    def prepare(self, weight: Weight) -> list[torch.Tensor]:
        check_packed(weight, (4, 8))
        device = weight.codes.device
        if device.type == "cuda" and torch.cuda.get_device_capability(device) != HOPPER:
            raise Unusable("runs on Hopper only")
        group = weight.group_size or weight.columns
        if group % LEAST_COLUMNS or weight.columns % group:
            raise Unusable(f"takes no groups of {group} columns")
        if not _cuts(weight.rows, weight.columns, self.most):
            raise Unusable(f"{weight.columns} columns are no multiple of {min(COLUMNS)}")
        codes = weight.codes.contiguous()
        scales = weight.scales.t().contiguous()
        # As many as there are programs with the smallest tiles.
        tiles = math.ceil(weight.rows / FEWEST_ROWS) * math.ceil(self.most / min(SHAPES))
        blocks = torch.zeros(tiles, dtype=torch.int32, device=codes.device)
        if weight.zeros is None:
            return [codes, scales, blocks]
        return [codes, scales, blocks, weight.zeros.t().to(torch.uint8).contiguous()]

    def multiply(
        self, inputs: Inputs, tensors: list[torch.Tensor], options: Options
    ) -> torch.Tensor:
        from serve.kernels.products.triton_kernels.batched import batched_kernel

        words, scales, counter, *zeros = tensors
        x = inputs.plain.contiguous()
        (tokens, columns), (rows, groups) = x.shape, (words.shape[0], scales.shape[0])
        arguments = launch_arguments(options, 0)
        width, block, split = (arguments[name] for name in ("TOKENS", "BLOCK_N", "SPLIT"))
        arguments["BLOCK_K"] = math.gcd(arguments["BLOCK_K"], columns // groups)
        blocks = math.ceil(tokens / width) * math.ceil(rows / block)
        out = torch.empty((tokens, rows), dtype=x.dtype, device=x.device)
        size = blocks * block * width * split if split > 1 else 1
        parts = torch.empty(size, dtype=torch.float32, device=x.device)
        batched_kernel[(blocks, split)](
            x, words.view(torch.uint8), scales, zeros[0] if zeros else words, out, parts, counter,
            tokens, rows, columns, groups, 32 * words.shape[1] // columns, bool(zeros),
            rows % block == 0, **arguments,
        )  # fmt: skip
        return out


@dataclass(frozen=True)
class Cut:
    """One way to cut a product into programs."""

    width: int
    """Tokens of a tile."""
    rows: int
    warps: int
    columns: int
    split: int
    stages: int

    def options(self, prefetched: int = 0) -> Options:
        tiles = Tiles(self.rows, self.columns, self.split, self.warps, self.stages)
        return tiles.options(self.width, prefetched)

    @property
    def shared_bytes(self) -> int:
        """With INT8 weights."""
        return self.stages * self.columns * (self.rows + self.width * 2)

    @property
    def resident(self) -> int:
        """Programs that a multiprocessor holds: two sets of sums are in registers."""
        threads = self.warps * 32
        registers = 2 * self.rows * self.width / threads + OTHER_REGISTERS
        return min(SHARED_MEMORY // self.shared_bytes, int(REGISTERS // (registers * threads)))

    def clocks(self, rows: int, columns: int, tokens: int) -> float:
        """A coarse estimate of the time: good enough to order candidates, no more. What a
        multiprocessor does for a tile overlaps as far as other warps have work."""
        programs = math.ceil(rows / self.rows) * math.ceil(tokens / self.width) * self.split
        on_each = math.ceil(programs / MULTIPROCESSORS)
        weights = self.rows * self.columns
        multiplying = weights * self.width / 2048
        widening = weights / 64 + self.rows * self.width / 128
        loading = weights / 64
        reading = weights * WEIGHT_BYTES / 19
        activations = self.width * self.columns * 2 / 64
        longest = max(multiplying, widening, loading, reading, activations)
        groups = min(self.resident, on_each) * self.warps / 4
        one_by_one = (multiplying + widening + loading + STEP_CLOCKS) / groups
        steps = columns // self.columns / self.split
        end = (self.rows * self.width / 8 + 1000) * (self.split > 1)
        return on_each * (steps * max(longest, one_by_one) + end)


def _cuts(rows: int, columns: int, tokens: int) -> list[Cut]:
    """Candidates, the best guess first. A program's share of columns is never empty."""
    found = []
    for width, (block, warps), block_columns, split, stages in itertools.chain.from_iterable(
        itertools.product((width,), SHAPES[width], COLUMNS, SPLITS, STAGES)
        for width in _widths(tokens)
    ):
        cut = Cut(width, block, warps, block_columns, split, stages)
        fits = columns % block_columns == 0 and block <= max(rows, FEWEST_ROWS)
        if fits and cut.resident and can_split(columns // block_columns, split):
            found.append(cut)
    found.sort(key=lambda cut: (cut.clocks(rows, columns, tokens), -cut.stages))
    return spread_out(found, lambda cut: (cut.width, cut.rows, cut.warps))


def _widths(tokens: int) -> list[int]:
    """Tokens of a tile: the least that holds all of them, or half of those."""
    least = next((width for width in SHAPES if width >= tokens), max(SHAPES))
    return [width for width in SHAPES if least // 2 <= width <= least]
