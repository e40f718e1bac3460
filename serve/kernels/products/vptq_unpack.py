"""Products of many tokens with vector-quantized weights: unpack some rows, multiply, go on."""

from functools import cache

import torch

from serve.kernels.products.cuda_kernels.compiled import Kernel
from serve.kernels.products.cuda_kernels.vptq_unpack import NAME, THREADS, UnpackVariant
from serve.kernels.products.launch import options_of
from serve.kernels.products.product import Options, Unusable, Weight
from serve.kernels.products.vptq_layout import COLUMNS
from serve.kernels.products.vptq_prepared import Part, VectorProduct, parts_of, prepared

ROWS_AT_ONCE = (4096, 8192, 2048)
ALL_ROWS = 0
BLOCKS = 132 * 16
"""Blocks of threads that keep an H200 busy."""
TYPES = {torch.bfloat16: "bf16", torch.float16: "f16"}


class VptqUnpack(VectorProduct):
    """Any number of tokens, in plain PyTorch, so that it also runs on a CPU. Reads the tensors of
    `VptqFewTokens`, too."""

    name = "vptq_unpack"

    def options(self, rows: int, columns: int, tokens: int) -> list[Options]:
        return [options_of(ROWS=count) for count in ROWS_AT_ONCE]

    def prepare(self, weight: Weight) -> list[torch.Tensor]:
        return prepared(weight)

    def write(
        self, x: torch.Tensor, tensors: list[torch.Tensor], options: Options, out: torch.Tensor
    ) -> None:
        parts = parts_of(tensors)
        outliers = int(parts[1].scales.shape[0]) if len(parts) > 1 else 0
        columns = (x.shape[1] - outliers, outliers)
        vector_rows, vector = int(parts[0].low.shape[0]), parts[0].vector
        step = max(1, dict(options)["ROWS"] // vector)
        for first in range(0, vector_rows, step):
            last = min(first + step, vector_rows)
            here = slice(first * vector, last * vector)
            weights = parts[0].dense(first, last, columns[0], x.dtype)
            if outliers:
                ratio = vector / parts[1].vector  # their vectors may be of another length
                small = parts[1].dense(int(first * ratio), int(last * ratio), outliers, x.dtype)
                weights = torch.cat([small, weights], dim=1)
            torch.mm(x, weights.t(), out=out[:, here])


class VptqUnpackKernel(VectorProduct):
    """The same by a kernel of ours, on a GPU."""

    name = "vptq_unpack_kernel"
    fewest = 17

    def options(self, rows: int, columns: int, tokens: int) -> list[Options]:
        return [options_of(ROWS=count) for count in (8192, 4096, ALL_ROWS) if count < rows]

    def prepare(self, weight: Weight) -> list[torch.Tensor]:
        if weight.codes.device.type != "cuda":
            raise Unusable("needs an NVIDIA GPU")
        return prepared(weight)

    def write(
        self, x: torch.Tensor, tensors: list[torch.Tensor], options: Options, out: torch.Tensor
    ) -> None:
        (part,) = parts_of(tensors)  # outlier columns are products of their own
        if x.dtype != part.main.dtype:
            raise Unusable(f"multiplies {part.main.dtype}, not {x.dtype}")
        vector_rows, vector, columns = int(part.low.shape[0]), part.vector, int(x.shape[1])
        step = min(vector_rows, dict(options)["ROWS"] // vector or vector_rows)
        scratch = torch.empty((step * vector, columns), dtype=x.dtype, device=x.device)
        for first in range(0, vector_rows, step):
            count = min(step, vector_rows - first)
            unpack_rows(part, first, count, scratch)
            here = slice(first * vector, (first + count) * vector)
            torch.mm(x, scratch[: count * vector].t(), out=out[:, here])


@cache
def kernel_of(variant: UnpackVariant, device: int) -> Kernel:
    """A kernel is loaded for one GPU."""
    return Kernel(variant.source(), NAME)


def unpack_rows(part: Part, first: int, count: int, out: torch.Tensor) -> None:
    """Writes some rows of vectors as weights [rows, columns]."""
    columns, residual = int(out.shape[1]), bool(part.residual.numel())
    variant = UnpackVariant(
        part.tail_bytes, part.vector, residual, bool(part.scales.numel()),
        bool(part.swaps.numel()), TYPES[out.dtype],
    )  # fmt: skip
    blocks = -(-columns // COLUMNS)
    kernel_of(variant, out.device.index or 0).launch(
        blocks * min(count, -(-BLOCKS // blocks)), THREADS, 0,
        (part.main, part.residual, part.low, part.tail, part.scales, part.biases, out),
        (columns, first, count, part.main_bits),
    )  # fmt: skip
