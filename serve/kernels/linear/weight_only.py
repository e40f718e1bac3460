"""Integer weights with 16-bit activations (W4A16, W8A16): groups or channels, with zero points or
without. Marlin for few tokens, Machete beyond, and unpacked weights for prompts, as measured."""

import torch
from vllm.model_executor.kernels import linear as kernels
from vllm.model_executor.kernels.linear import MPLinearLayerConfig
from vllm.scalar_type import scalar_types

from conf.schema.kernels import WEIGHT_ONLY
from serve.kernels.linear.catalog import PACKED, products_of
from serve.kernels.linear.conditions import (
    answer,
    asked_families,
    capability_refusal,
    engine_refusal,
    not_offered,
)
from serve.kernels.linear.loading import LayerKind
from serve.kernels.linear.packed import FP8, PackedLinearKernel, left_packed, packed_refusal
from serve.kernels.plugin import insert_first
from serve.kernels.products.from_vllm.packed import Machete, Marlin

TYPES = (
    scalar_types.uint4b8,
    scalar_types.uint8b128,
    scalar_types.uint4,
    scalar_types.uint8,
)


class QuantlineWeightOnlyLinearKernel(PackedLinearKernel):
    @classmethod
    def can_implement(cls, c: MPLinearLayerConfig) -> tuple[bool, str | None]:
        return answer(
            lambda: not_offered(WEIGHT_ONLY) or _other_class(c),
            lambda: (
                capability_refusal()
                or engine_refusal()
                or _refusal(c)
                or packed_refusal(c, "Machete", "Marlin")
            ),
            lambda: left_packed(c),
        )

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        c = self.config
        is_machete = type(self.vllms).__name__.startswith("Machete")
        own = Machete() if is_machete else Marlin()
        other = Marlin() if is_machete else Machete()
        kind = LayerKind(
            f"w{c.weight_type.size_bits}a16",
            (own, other, *products_of(PACKED, asked_families())),
            own.name,
            None,
        )
        self.load_packed(layer, kind, c.act_type)


def _other_class(c: MPLinearLayerConfig) -> str | None:
    """Why a layer is one of `w4afp8`, which says it where it does not take the layer."""
    return "takes no FP8 activations" if c.act_type == FP8 else None


def _refusal(c: MPLinearLayerConfig) -> str | None:
    if c.act_type not in (torch.bfloat16, torch.float16):
        return f"takes 16-bit activations, not {c.act_type}"
    if c.out_type not in (None, c.act_type):
        return f"gives the type of its activations, not {c.out_type}"
    if c.weight_type not in TYPES:
        return f"takes weights of 4 or 8 bits, not {c.weight_type}"
    return None


def register() -> None:
    """Puts the class before vLLM's own."""
    insert_first(kernels._POSSIBLE_KERNELS, QuantlineWeightOnlyLinearKernel)
