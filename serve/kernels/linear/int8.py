"""INT8 weights and activations (W8A8, symmetric, rounded by token), dense or 2:4."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from vllm.model_executor.kernels import linear as kernels
from vllm.model_executor.kernels.linear import (
    Int8ScaledMMLinearKernel,
    Int8ScaledMMLinearLayerConfig,
)

from conf.schema.kernels import ONE_TOKEN, SPARSE
from serve.kernels.linear.base import QuantlineLinear
from serve.kernels.linear.catalog import INT8, products_of
from serve.kernels.linear.conditions import (
    answer,
    asked_families,
    capability_refusal,
    engine_refusal,
    model_dtype,
    not_offered,
    own_refusal,
    run_by_vllm,
    vllms_choice,
)
from serve.kernels.linear.loading import LayerKind, Rounding
from serve.kernels.linear.rounding import round_int8
from serve.kernels.linear.stored import int8_weight, merged_widths
from serve.kernels.plugin import insert_first
from serve.kernels.products.from_vllm.scaled import CutlassInt8
from serve.kernels.products.product import Weight
from serve.kernels.record import LayerKernels


class QuantlineInt8LinearKernel(QuantlineLinear, Int8ScaledMMLinearKernel):  # type: ignore[misc]
    """Activations are rounded by an op of ours, which a pass fuses with what comes before."""

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
        return True, None  # can_implement says it, with the layer

    @classmethod
    def can_implement(cls, c: Int8ScaledMMLinearLayerConfig) -> tuple[bool, str | None]:
        return answer(
            lambda: not_offered(ONE_TOKEN, SPARSE),
            lambda: capability_refusal() or engine_refusal() or _refusal(c),
            # vLLM's config of these layers has no shape.
            lambda: LayerKernels("int8", 0, 0, run_by_vllm(kernels._POSSIBLE_INT8_KERNELS, c)),
        )

    def __init__(self, c: Int8ScaledMMLinearLayerConfig, layer_param_names: Sequence[str]) -> None:
        super().__init__(c, layer_param_names)
        self.vllms = vllms_choice(kernels._POSSIBLE_INT8_KERNELS, c)(c, layer_param_names)
        self.dtype = model_dtype()

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        codes, scales, *_ = self.layer_param_names
        kind = LayerKind(
            "int8", (CutlassInt8(), *products_of(INT8, asked_families())), CutlassInt8.name,
            torch.int8,
        )  # fmt: skip

        def weight() -> Weight:
            return with_sparsity(
                int8_weight(getattr(layer, codes), getattr(layer, scales), merged_widths(layer))
            )

        self.load(layer, kind, weight, (codes, scales), self.dtype)

    def rounding(self, layer: torch.nn.Module) -> Rounding:
        return round_int8


def _refusal(c: Int8ScaledMMLinearLayerConfig) -> str | None:
    if c.is_static_input_scheme:
        return "rounds activations by token, and these have static scales"
    if not c.input_symmetric:
        return "takes symmetric activations only"
    return own_refusal(vllms_choice(kernels._POSSIBLE_INT8_KERNELS, c), "Cutlass")


def with_sparsity(weight: Weight) -> Weight:
    """Marks a 2:4 weight, where the engine may use that."""
    if SPARSE not in asked_families():
        return weight
    from serve.kernels.products.sparse.lt import is_sparse24

    return replace(weight, sparse=weight.columns % 4 == 0 and is_sparse24(weight.codes))


def register() -> None:
    """Puts the class before vLLM's own."""
    insert_first(kernels._POSSIBLE_INT8_KERNELS, QuantlineInt8LinearKernel)
