"""The product of plain PyTorch: unpacks weights at every call, in 32-bit numbers that are rounded
once. Exact and slow; for CPUs, and for layers that our kernel does not take."""

import torch

from serve.kernels.products.product import Options, Unusable, Weight
from serve.kernels.products.vptq_layout import VectorWeight, packed
from serve.kernels.products.vptq_prepared import VectorProduct

WEIGHTS_AT_ONCE = 1 << 24
UNSIGNED_16_BIT = 0xFFFF


class VptqExact(VectorProduct):
    """Any length of vectors, any type of codebooks."""

    name = "vptq_exact"

    def options(self, rows: int, columns: int, tokens: int) -> list[Options]:
        return [()]

    def prepare(self, weight: Weight) -> list[torch.Tensor]:
        """Numbers as 16-bit words, both codebooks, scales and biases; empty where there is none."""
        if not isinstance(weight, VectorWeight) or weight.outliers is not None:
            raise Unusable("takes vector-quantized weights without outlier columns of their own")
        nothing = torch.empty(0, dtype=weight.book.dtype, device=weight.book.device)
        no_codes = torch.empty(0, dtype=torch.int16, device=weight.codes.device)
        residual = weight.residual_codes
        return [
            packed(weight.codes, 16)[0],
            no_codes if residual is None else packed(residual, 16)[0],
            weight.book,
            nothing if weight.residual is None else weight.residual,
            weight.scales.reshape(-1) if weight.has_scales else nothing,
            nothing if weight.biases is None else weight.biases,
        ]

    def write(
        self, x: torch.Tensor, tensors: list[torch.Tensor], options: Options, out: torch.Tensor
    ) -> None:
        codes, main = tensors[0], tensors[2]
        vector, step = int(main.shape[1]), max(1, WEIGHTS_AT_ONCE // (x.shape[1] * main.shape[1]))
        for first in range(0, codes.shape[0], step):
            last = min(first + step, int(codes.shape[0]))
            weights = dequantized(tensors, first, last).to(x.dtype)
            out[:, first * vector : last * vector] = torch.nn.functional.linear(x, weights)

    def outputs(self, tensors: list[torch.Tensor]) -> int:
        return int(tensors[0].shape[0] * tensors[2].shape[1])


def dequantized(tensors: list[torch.Tensor], first: int, last: int) -> torch.Tensor:
    """Some rows of vectors as weights [rows, columns] in 32 bits."""
    codes, residual_codes, main, residual, scales, biases = tensors
    weights = main.float()[codes[first:last].long() & UNSIGNED_16_BIT]
    if residual.numel():
        weights = weights + residual.float()[residual_codes[first:last].long() & UNSIGNED_16_BIT]
    weights = weights.transpose(1, 2).reshape(-1, codes.shape[1])
    if scales.numel():
        weights = weights * scales.float()
    return weights + biases.float() if biases.numel() else weights
