"""INT4 weights in groups of 128 with FP8 activations: 16-bit ones for few tokens, a kernel of ours
for up to 128, CUTLASS W4A8 for prompts and large batches, as measured."""

from typing import Any

import torch
from vllm.model_executor.kernels import linear as kernels
from vllm.model_executor.kernels.linear import MPLinearLayerConfig
from vllm.model_executor.layers.quantization.input_quant_fp8 import QuantFP8
from vllm.model_executor.layers.quantization.utils.quant_utils import GroupShape
from vllm.scalar_type import scalar_types

from conf.schema.kernels import W4AFP8
from serve.kernels.linear.catalog import PACKED_FP8, products_of
from serve.kernels.linear.conditions import (
    answer,
    asked_families,
    capability_refusal,
    engine_refusal,
    not_offered,
)
from serve.kernels.linear.loading import LayerKind, Rounding
from serve.kernels.linear.packed import FP8, PackedLinearKernel, left_packed, packed_refusal
from serve.kernels.linear.rounding import is_ours, round_fp8
from serve.kernels.plugin import insert_first
from serve.kernels.products.from_vllm.packed import CutlassW4A8, Machete, Marlin

HOPPER = 90


class QuantlineW4AFp8LinearKernel(PackedLinearKernel):
    """CUTLASS W4A8 rounds group scales, and weights times their scale, to FP8. The others keep the
    checkpoint's, so they are closer to it: decoding and prompts differ by that, and by the rounding
    of activations."""

    def __init__(self, c: MPLinearLayerConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(c, *args, **kwargs)
        self.quant_fp8 = QuantFP8(static=False, group_shape=GroupShape.PER_TOKEN)

    @classmethod
    def can_implement(cls, c: MPLinearLayerConfig) -> tuple[bool, str | None]:
        return answer(
            lambda: not_offered(W4AFP8) or _other_class(c),
            lambda: (
                capability_refusal(HOPPER)
                or engine_refusal()
                or _refusal(c)
                or packed_refusal(c, "CutlassW4A8")
            ),
            lambda: left_packed(c),
        )

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        products = (CutlassW4A8(), Marlin(), Machete(), *products_of(PACKED_FP8, asked_families()))
        kind = LayerKind("w4afp8", products, CutlassW4A8.name, FP8)
        self.load_packed(layer, kind, torch.bfloat16)

    def rounding(self, layer: torch.nn.Module) -> Rounding:
        def rounded(flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            by_vllm: Rounding = self.quant_fp8
            return round_fp8(flat) if is_ours(flat) else by_vllm(flat)

        return rounded


def _other_class(c: MPLinearLayerConfig) -> str | None:
    """Why a layer is one of `weight_only`: vLLM asks both classes for all packed layers."""
    return None if c.act_type == FP8 else f"takes FP8 activations, not {c.act_type}"


def _refusal(c: MPLinearLayerConfig) -> str | None:
    if c.weight_type != scalar_types.int4 or c.zero_points:
        return f"takes symmetric 4-bit weights, not {c.weight_type}"
    if c.group_size != 128:
        return f"takes groups of 128, not {c.group_size}"
    if c.out_type != torch.bfloat16:
        return f"gives bfloat16, not {c.out_type}"
    return None


def register() -> None:
    """Puts the class before vLLM's own."""
    insert_first(kernels._POSSIBLE_KERNELS, QuantlineW4AFp8LinearKernel)
