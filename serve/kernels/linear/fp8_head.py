"""Output heads with FP8 weights (a scale for each channel or tensor) and 16-bit activations."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from vllm.model_executor.kernels import linear as kernels
from vllm.model_executor.kernels.linear import FP8ScaledMMLinearLayerConfig

from conf.schema.kernels import WEIGHT_ONLY
from serve.kernels.linear.catalog import FP8_PLAIN, products_of
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
from serve.kernels.linear.fp8 import ADA, Fp8Kernel, weights_refusal
from serve.kernels.linear.loading import LayerKind, is_head
from serve.kernels.plugin import insert_first
from serve.kernels.products.from_vllm.marlin_fp8 import MarlinFp8
from serve.kernels.record import ALL, LayerKernels, note_refusal

KIND = "fp8a16"


class QuantlineFp8HeadKernel(Fp8Kernel):
    """Ours are measured beside vLLM's Marlin. Other layers of this format are left to vLLM, whose
    first choice for them, Humming, was compared with none of ours."""

    @classmethod
    def can_implement(cls, c: FP8ScaledMMLinearLayerConfig) -> tuple[bool, str | None]:
        return answer(
            lambda: not_offered(WEIGHT_ONLY),
            lambda: capability_refusal(ADA) or engine_refusal() or _refusal(c),
            lambda: _left(c),
        )

    def __init__(self, c: FP8ScaledMMLinearLayerConfig, layer_param_names: Sequence[str]) -> None:
        super().__init__(c, layer_param_names)
        self.vllms = vllms_choice(kernels._POSSIBLE_WFP8A16_KERNELS, c)(c, layer_param_names)

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        if not is_head(layer):
            note_refusal(replace(_left(self.config), refused={ALL: "our kernel takes heads only"}))
            self.vllms.process_weights_after_loading(layer)
            return
        kind = LayerKind(
            KIND, (MarlinFp8(), *products_of(FP8_PLAIN, asked_families())), MarlinFp8.name, None,
            fallback=type(self.vllms).__name__,
        )  # fmt: skip
        names = self.layer_param_names[:2]
        self.load(layer, kind, lambda: self.stored(layer), names, self.config.out_dtype)


def _refusal(c: FP8ScaledMMLinearLayerConfig) -> str | None:
    if reason := weights_refusal(c):
        return reason
    if not c.out_dtype == c.input_dtype == torch.bfloat16:
        return f"takes and gives bfloat16, not {c.input_dtype} and {c.out_dtype}"
    own = vllms_choice(kernels._POSSIBLE_WFP8A16_KERNELS, c)
    return own_refusal(own, "Humming", "Marlin")


def _left(c: FP8ScaledMMLinearLayerConfig) -> LayerKernels:
    rows, columns = map(int, c.weight_shape or (0, 0))
    return LayerKernels(KIND, rows, columns, run_by_vllm(kernels._POSSIBLE_WFP8A16_KERNELS, c))


def register() -> None:
    """Puts the class before vLLM's own."""
    insert_first(kernels._POSSIBLE_WFP8A16_KERNELS, QuantlineFp8HeadKernel)
