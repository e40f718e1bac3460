"""2:4 products of 1 to 16 tokens with 8-bit weights, by a kernel of ours."""

import math
from typing import ClassVar

import torch

from serve.kernels.products.few_tokens import FP8
from serve.kernels.products.launch import candidates, counters, launch_arguments
from serve.kernels.products.product import Inputs, Options, Product, Weight
from serve.kernels.products.sparse.layout import PIECES, columns_of_block, pack
from serve.kernels.products.sparse.lt import check_sparse

ROWS_PACKED_AT_ONCE = 2048


class SparseFewTokens(Product):
    """Weights are expanded in registers: 10/16 of the bytes are read."""

    most = 16
    compiles = True
    reads_rounded = True
    weight_dtype: ClassVar[torch.dtype]

    def options(self, rows: int, columns: int, tokens: int) -> list[Options]:
        block = columns_of_block(columns)
        return [
            tuple(pair for pair in options if pair[0] != "BLOCK_K")
            for options in candidates(rows, columns, tokens, 0.625, blocks=(block,))
        ]

    def prepare(self, weight: Weight) -> list[torch.Tensor]:
        check_sparse(weight, self.weight_dtype)
        columns_of_block(weight.columns)
        packed = torch.cat([pack(part) for part in weight.codes.split(ROWS_PACKED_AT_ONCE)])
        scales = weight.scales.float().reshape(-1).expand(weight.rows).contiguous()
        return [packed, scales, counters(weight.rows, packed.device)]

    def multiply(
        self, inputs: Inputs, tensors: list[torch.Tensor], options: Options
    ) -> torch.Tensor:
        from serve.kernels.products.triton_kernels.sparse import sparse_kernel

        packed, scales, counter = tensors
        assert inputs.rounded is not None
        x = inputs.rounded.contiguous()
        rows, columns = packed.shape[0], x.shape[1]
        groups = columns_of_block(columns) // 8
        arguments = launch_arguments(options, x.shape[0])
        split, block = arguments["SPLIT"], arguments["BLOCK_N"]
        blocks = math.ceil(rows / block)
        is_float = self.weight_dtype == FP8
        out = torch.empty((x.shape[0], rows), dtype=inputs.plain.dtype, device=x.device)
        size = blocks * block * arguments["TOKENS"] * split if split > 1 else 1
        sums = torch.float32 if is_float else torch.int32
        parts = torch.empty(size, dtype=sums, device=x.device)
        sparse_kernel[(blocks, split)](
            x.view(torch.int32), scales if inputs.scales is None else inputs.scales, packed, scales,
            out, parts, counter, x.shape[0], rows, groups, packed.shape[1] // (PIECES * groups),
            is_float, inputs.scales is not None, **arguments,
        )  # fmt: skip
        return out


class SparseFewTokensInt8(SparseFewTokens):
    """INT8 weights and activations: exact sums."""

    name = "sparse_few_tokens_int8"
    weight_dtype = torch.int8


class SparseFewTokensFp8(SparseFewTokens):
    """FP8 weights and activations."""

    name = "sparse_few_tokens_fp8"
    weight_dtype = FP8
