"""FP8 products through cuBLAS, as PyTorch offers them: a scale for each token and each row."""

import torch

from serve.kernels.products.few_tokens import FP8
from serve.kernels.products.product import Inputs, Options, Product, Unusable, Weight

STEP = 16  # cuBLAS takes rows and columns of FP8 in multiples of it


class CublasFp8(Product):
    """Reads the weight as the checkpoint stores it. cuBLAS has other tiles than CUTLASS, so one or
    the other is faster, depending on the shape."""

    name = "cublas_fp8"
    reads_rounded = True
    traceable = True

    def options(self, rows: int, columns: int, tokens: int) -> list[Options]:
        return [()]

    def prepare(self, weight: Weight) -> list[torch.Tensor]:
        if weight.codes.dtype != FP8:
            raise Unusable(f"weights are {weight.codes.dtype}, not {FP8}")
        if weight.group_size is not None or weight.zeros is not None:
            raise Unusable("takes one scale for each row and no zero points")
        if weight.rows % STEP or weight.columns % STEP:
            raise Unusable(f"{weight.rows} x {weight.columns} is no multiple of {STEP}")
        scales = weight.scales.float().reshape(1, -1).expand(1, weight.rows).contiguous()
        return [weight.codes.contiguous(), scales]

    def multiply(
        self, inputs: Inputs, tensors: list[torch.Tensor], options: Options
    ) -> torch.Tensor:
        codes, row_scales = tensors
        assert inputs.rounded is not None
        token_scales = inputs.scales
        if token_scales is None:
            token_scales = row_scales.new_ones((inputs.rounded.shape[0], 1))
        return torch._scaled_mm(
            inputs.rounded.contiguous(), codes.t(), token_scales, row_scales,
            out_dtype=inputs.plain.dtype, use_fast_accum=True,
        )  # fmt: skip
