"""Products of one token in 16 bit with 8-bit weights, without tensor cores."""

import math
from typing import ClassVar

import torch

from serve.kernels.products.few_tokens import FP8, prepared
from serve.kernels.products.launch import launch_arguments, options_of
from serve.kernels.products.product import Inputs, Options, Product, Weight

SMALLEST_TILE, LARGEST_TILE = 16, 64
"""Weights of a tile that one thread has: one load of 16 bytes to four."""
TILES = 13
"""To measure."""
MOST_STEPS = 80
"""Of a program, which are all written out."""


class OneToken(Product):
    """Each program has some rows of the weight; sums are float32."""

    most = 1
    compiles = True
    weight_dtype: ClassVar[torch.dtype]

    def options(self, rows: int, columns: int, tokens: int) -> list[Options]:
        tiles = [
            (block, width, warps)
            for block in (4, 8, 2, 16, 1)
            for width in (1024, 2048, 512, 4096, 256, 128, 64)
            for warps in (4, 2, 8, 1)
            if columns % width == 0
            and columns // width <= MOST_STEPS
            and SMALLEST_TILE <= block * width // (warps * 32) <= LARGEST_TILE
        ]
        # Prefetched weights are faster by up to an eighth on an H200, but not for every shape.
        return [
            options_of(BLOCK_N=block, BLOCK_K=width, PDL=prefetched, num_warps=warps)
            for block, width, warps in tiles[:TILES]
            for prefetched in (1, 0)
        ]

    def prepare(self, weight: Weight) -> list[torch.Tensor]:
        return prepared(weight, self.weight_dtype)

    def multiply(
        self, inputs: Inputs, tensors: list[torch.Tensor], options: Options
    ) -> torch.Tensor:
        from serve.kernels.products.triton_kernels.one_token import one_token_kernel

        weights, scales, _ = tensors
        rows, columns = weights.shape
        x = inputs.plain.contiguous()
        assert x.shape[0] == 1
        arguments = launch_arguments(options, x.shape[0])
        block = arguments["BLOCK_N"]
        out = torch.empty((1, rows), dtype=x.dtype, device=x.device)
        programs = math.ceil(rows / block)
        one_token_kernel[(programs,)](
            x, weights, scales, out, rows, columns, rows % block == 0, **arguments
        )
        return out


class OneTokenFp8(OneToken):
    name = "one_token_fp8"
    weight_dtype = FP8


class OneTokenInt8(OneToken):
    name = "one_token_int8"
    weight_dtype = torch.int8
