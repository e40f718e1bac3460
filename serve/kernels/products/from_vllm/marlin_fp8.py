"""vLLM's Marlin for FP8 weights and 16-bit activations."""

import torch

from serve.kernels.products.few_tokens import FP8, check_rows
from serve.kernels.products.from_vllm.packed import (
    CHANNEL,
    check_marlin_shape,
    marlin_words,
    marlin_workspace,
)
from serve.kernels.products.product import Inputs, Options, Product, Weight

BITS = 8


class MarlinFp8(Product):
    """Weights are widened to bfloat16 on their way to the tensor cores; any number of tokens."""

    name = "marlin_fp8"

    def options(self, rows: int, columns: int, tokens: int) -> list[Options]:
        return [()]

    def prepare(self, weight: Weight) -> list[torch.Tensor]:
        from vllm.model_executor.layers.quantization.utils import marlin_utils, marlin_utils_fp8

        check_rows(weight, FP8, 64)
        check_marlin_shape(weight)
        words = weight.codes.contiguous().view(torch.int32)
        scales = marlin_utils.marlin_permute_scales(
            weight.scales.to(torch.bfloat16).reshape(1, -1).expand(1, weight.rows).contiguous(),
            size_k=weight.columns,
            size_n=weight.rows,
            group_size=CHANNEL,
        )
        # Marlin widens by shifts of bits, which leave out the exponents' difference.
        scales = marlin_utils_fp8.fp8_fused_exponent_bias_into_scales(scales)
        return [
            marlin_words(words, weight.columns, BITS), scales, marlin_workspace(words.device)
        ]  # fmt: skip

    def multiply(
        self, inputs: Inputs, tensors: list[torch.Tensor], options: Options
    ) -> torch.Tensor:
        from vllm.model_executor.layers.quantization.utils import marlin_utils_fp8

        words, scales, workspace = tensors
        product: torch.Tensor = marlin_utils_fp8.apply_fp8_marlin_linear(
            input=inputs.plain,
            weight=words,
            weight_scale=scales,
            workspace=workspace,
            size_n=scales.shape[1],
            size_k=inputs.plain.shape[1],
            bias=None,
        )
        return product
