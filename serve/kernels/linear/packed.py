"""What kernel classes of packed integer weights share."""

from typing import Any

import torch
from vllm.model_executor.kernels import linear as kernels
from vllm.model_executor.kernels.linear import MPLinearKernel, MPLinearLayerConfig

from serve.kernels.linear.base import QuantlineLinear
from serve.kernels.linear.conditions import own_refusal, run_by_vllm, vllms_choice
from serve.kernels.linear.loading import LayerKind
from serve.kernels.linear.stored import packed_weight
from serve.kernels.products.product import Weight
from serve.kernels.record import LayerKernels

FP8 = torch.float8_e4m3fn


class PackedLinearKernel(QuantlineLinear, MPLinearKernel):  # type: ignore[misc]
    """A weight of packed words."""

    @classmethod
    def get_min_capability(cls) -> int:
        return 0  # can_implement says it, with the layer

    def __init__(self, c: MPLinearLayerConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(c, *args, **kwargs)
        self.vllms = vllms_choice(kernels._POSSIBLE_KERNELS, c)(c, *args, **kwargs)

    def load_packed(self, layer: torch.nn.Module, kind: LayerKind, dtype: torch.dtype) -> None:
        c = self.config
        names = [self.w_q_name, self.w_s_name]
        names += [self.w_zp_name] if c.zero_points and self.w_zp_name else []

        def weight() -> Weight:
            codes, scales, *zeros = (getattr(layer, name) for name in names)
            group = c.group_size if c.group_size > 0 else None
            return packed_weight(
                codes, scales, zeros[0] if zeros else None, c.weight_type.size_bits, group
            )

        self.load(layer, kind, weight, names, dtype)


def left_packed(c: MPLinearLayerConfig) -> LayerKernels:
    """A layer that is left to vLLM."""
    columns, rows = c.partition_weight_shape
    activations = "fp8" if c.act_type == FP8 else str(8 * c.act_type.itemsize)
    ran = run_by_vllm(kernels._POSSIBLE_KERNELS, c)
    return LayerKernels(f"w{c.weight_type.size_bits}a{activations}", rows, columns, ran)


def packed_refusal(c: MPLinearLayerConfig, *own: str) -> str | None:
    """Why no packed layer of this kind is taken, whatever its number types; `own` are vLLM's
    kernels that ours are compared with."""
    if getattr(c, "has_g_idx", False):  # 0.25 only
        return "takes no reordered weights (g_idx)"
    columns, rows = c.partition_weight_shape
    if rows % 64 or columns % 64:
        return f"takes rows and columns in multiples of 64, not {rows} x {columns}"
    if c.group_size > 0 and columns % c.group_size:
        return f"takes whole groups, and {columns} columns are no multiple of {c.group_size}"
    if c.group_size <= 0 and columns != c.full_weight_shape[0] and c.zero_points:
        return "takes no zero points of channels that several GPUs share"
    return own_refusal(vllms_choice(kernels._POSSIBLE_KERNELS, c), *own)
