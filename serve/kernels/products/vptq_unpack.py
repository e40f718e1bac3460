"""Products of many tokens with vector-quantized weights: unpack some rows, multiply, go on.

In plain PyTorch, so that it also runs on a CPU, where it is exact and slow.
"""

import torch

from serve.kernels.products.launch import options_of
from serve.kernels.products.product import Options, Weight
from serve.kernels.products.vptq_prepared import VectorProduct, parts_of, prepared

ROWS_AT_ONCE = (4096, 8192, 2048)


class VptqUnpack(VectorProduct):
    """Any number of tokens; reads the tensors of `VptqFewTokens`, too."""

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
