"""FP8 weights (a scale for each channel or tensor) and activations rounded by token."""

from collections.abc import Sequence
from typing import Any

import torch
from vllm.model_executor.kernels import linear as kernels
from vllm.model_executor.kernels.linear import (
    FP8ScaledMMLinearKernel,
    FP8ScaledMMLinearLayerConfig,
)

from conf.schema.kernels import CUBLAS, ONE_TOKEN, SPARSE
from serve.kernels.linear.base import QuantlineLinear
from serve.kernels.linear.catalog import FP8, products_of
from serve.kernels.linear.conditions import (
    answer,
    asked_families,
    capability_refusal,
    engine_refusal,
    not_offered,
    own_refusal,
    run_by_vllm,
    vllms_choice,
)
from serve.kernels.linear.int8 import with_sparsity
from serve.kernels.linear.loading import LayerKind, Rounding
from serve.kernels.linear.rounding import is_ours, round_fp8
from serve.kernels.linear.stored import fp8_weight, merged_widths
from serve.kernels.plugin import insert_first
from serve.kernels.products.from_vllm.scaled import CutlassFp8
from serve.kernels.products.product import Weight
from serve.kernels.record import LayerKernels

ADA = 89
NOT_E4M3 = "takes FP8 (e4m3) only"


class Fp8Kernel(QuantlineLinear, FP8ScaledMMLinearKernel):  # type: ignore[misc]
    """What our classes of FP8 weights share."""

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
        return True, None  # can_implement says it, with the layer

    def stored(self, layer: torch.nn.Module) -> Weight:
        """The layer's weight, as vLLM has loaded it."""
        codes, scales = (getattr(layer, name) for name in self.layer_param_names[:2])
        return fp8_weight(codes, scales, merged_widths(layer))

    def apply_scaled_mm(self, **arguments: Any) -> torch.Tensor:
        """Part of vLLM's interface; only its own kernels are called this way."""
        product: torch.Tensor = self.vllms.apply_scaled_mm(**arguments)
        return product


class QuantlineFp8LinearKernel(Fp8Kernel):
    """Rounding is an op of ours, with the numbers of vLLM's QuantFP8, which has the other cases."""

    @classmethod
    def can_implement(cls, c: FP8ScaledMMLinearLayerConfig) -> tuple[bool, str | None]:
        return answer(
            lambda: not_offered(ONE_TOKEN, SPARSE, CUBLAS),
            lambda: capability_refusal(ADA) or engine_refusal() or _refusal(c),
            lambda: _left(c),
        )

    def __init__(self, c: FP8ScaledMMLinearLayerConfig, layer_param_names: Sequence[str]) -> None:
        super().__init__(c, layer_param_names)
        self.vllms = vllms_choice(kernels._POSSIBLE_FP8_KERNELS, c)(c, layer_param_names)

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        kind = LayerKind(
            "fp8", (CutlassFp8(), *products_of(FP8, asked_families())), CutlassFp8.name,
            torch.float8_e4m3fn,
        )  # fmt: skip

        def weight() -> Weight:
            return with_sparsity(self.stored(layer))

        self.load(layer, kind, weight, self.layer_param_names[:2], self.config.out_dtype)

    def rounding(self, layer: torch.nn.Module) -> Rounding:
        bound = getattr(layer, self.layer_param_names[3], None)

        def rounded(flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            if bound is None and is_ours(flat):
                return round_fp8(flat)
            by_vllm: tuple[torch.Tensor, torch.Tensor] = self.quant_fp8(flat, None, bound)
            return by_vllm

        return rounded


def _refusal(c: FP8ScaledMMLinearLayerConfig) -> str | None:
    activations = c.activation_quant_key
    if activations.scale.static or not activations.scale.group_shape.is_per_token():
        return "rounds activations by token, and these have other scales"
    if activations.dtype != torch.float8_e4m3fn:
        return NOT_E4M3
    if reason := weights_refusal(c):
        return reason
    if c.out_dtype != c.input_dtype or c.out_dtype not in (torch.bfloat16, torch.float16):
        return f"takes and gives bfloat16 or float16, not {c.input_dtype} and {c.out_dtype}"
    return own_refusal(vllms_choice(kernels._POSSIBLE_FP8_KERNELS, c), "Cutlass")


def weights_refusal(c: FP8ScaledMMLinearLayerConfig) -> str | None:
    """Why weights of this type, or with these scales, are not taken."""
    if c.weight_quant_key.dtype != torch.float8_e4m3fn:
        return NOT_E4M3
    shape = c.weight_quant_key.scale.group_shape
    if not (shape.is_per_tensor() or shape.is_per_channel() or shape.is_per_token()):
        return "takes a scale for each channel or tensor, not for blocks"
    return None


def _left(c: FP8ScaledMMLinearLayerConfig) -> LayerKernels:
    rows, columns = map(int, c.weight_shape or (0, 0))
    return LayerKernels("fp8", rows, columns, run_by_vllm(kernels._POSSIBLE_FP8_KERNELS, c))


def register() -> None:
    """Puts the class before vLLM's own."""
    insert_first(kernels._POSSIBLE_FP8_KERNELS, QuantlineFp8LinearKernel)
