"""NVFP4 weights: 4-bit floats in groups of 16, FP8 scales, and one scale for the tensor.

vLLM multiplies them with 16-bit activations, also on Blackwell (`CompressedTensorsW4A4Fp4` with
`use_a16`): with Marlin in 0.25.1, with FlashInfer on Blackwell from 0.32 on.
"""

from dataclasses import replace

from conf.formats.base.refusals import Refusal, mismatch_refusal, refuse_activations, refuse_weights
from conf.formats.base.stored_format import (
    BLACKWELL,
    KernelSupport,
    Machine,
    StoredFormat,
)
from conf.formats.base.tensors import (
    StoredTensor,
    activation_tensors,
    fp4_pairs,
    global_scale,
    scales,
)
from conf.formats.quant_args import EXPONENT_SCALES, FLOAT, LOCAL, STATIC, QuantArgs, QuantGroup

GROUP_SIZE = 16
LARGEST = 6.0


def is_fp4(weights: QuantArgs | None) -> bool:
    """Whether weights are 4-bit floats."""
    return weights is not None and weights.type == FLOAT and weights.bits == 4


def has_exponent_scales(weights: QuantArgs | None) -> bool:
    """Whether scales are powers of two, as in MXFP4."""
    return weights is not None and weights.scale_type == EXPONENT_SCALES


class Nvfp4(StoredFormat):
    name = "nvfp4"
    spellings = ("nvfp4-pack-quantized",)
    packed_parts = ("weight_packed",)
    marks = ("weight_scale", "weight_packed")

    def covers(self, weights: QuantArgs | None, activations: QuantArgs | None) -> bool:
        return activations is None and is_fp4(weights) and not has_exponent_scales(weights)

    def fits(self, group: QuantGroup) -> bool:
        has_groups = group.weights is not None and group.weights.strategy == "tensor_group"
        return super().fits(group) and has_groups

    def refusal(self, weights: QuantArgs, activations: QuantArgs | None) -> Refusal | None:
        if weights.scales != STATIC:
            return refuse_weights("dynamic", "weights have static scales; use dynamic: false")
        if not weights.symmetric:
            return refuse_weights(
                "symmetric", "float formats have no zero point; use symmetric: true"
            )
        refused = _group_refusal("weights", weights)
        if refused is not None or activations is None:
            return refused
        return mismatch_refusal(weights, activations) or _activations_refusal(activations)

    def code_range(self, weights: QuantArgs) -> tuple[float, float]:
        return -LARGEST, LARGEST

    def tensors(self, group: QuantGroup, rows: int, columns: int) -> dict[str, StoredTensor]:
        assert group.weights is not None
        group_scales = replace(scales(group.weights, rows, columns), dtypes=("F8_E4M3",))
        tensors = {"weight_packed": fp4_pairs(rows, columns), "weight_scale": group_scales}
        if group.weights.strategy == "tensor_group":
            tensors["weight_global_scale"] = global_scale()
        return tensors | activation_tensors(group.activations)

    def kernels(self, weights: QuantArgs | None) -> str:
        return "weight-only Marlin on NVIDIA since Turing, FlashInfer on Blackwell from 0.32 on"

    def support(self, weights: QuantArgs | None, machine: Machine) -> KernelSupport | None:
        if machine.capability is None:
            return machine.lacks_cpu_kernel("fp4")
        is_newer = machine.capability >= BLACKWELL
        return KernelSupport(
            True, f"weight-only {'Marlin or FlashInfer' if is_newer else 'Marlin'}"
        )

    def experts_refusal(self, weights: QuantArgs, activations: QuantArgs | None) -> str | None:
        return None

    def experts_support(self, weights: QuantArgs, machine: Machine) -> KernelSupport | None:
        return None if machine.capability is None else KernelSupport(True, "FP4 MoE")


def _group_refusal(tensor_kind: str, args: QuantArgs) -> Refusal | None:
    if args.strategy != "tensor_group":
        return Refusal(
            tensor_kind,
            "strategy",
            "4-bit floats are NVFP4, with strategy tensor_group, or MXFP4, with scale_type e8m0",
        )
    if args.group_size != GROUP_SIZE:
        return Refusal(tensor_kind, "group_size", f"NVFP4 has groups of {GROUP_SIZE}")
    if args.scale_type != "fp8":
        return Refusal(tensor_kind, "scale_type", "NVFP4 has fp8 scales")
    return None


def _activations_refusal(activations: QuantArgs) -> Refusal | None:
    if not activations.symmetric:
        return refuse_activations("symmetric", "float formats have no zero point")
    if activations.scales != LOCAL:
        reason = "NVFP4 activations have a calibrated scale and one for each group: dynamic: true"
        return refuse_activations("dynamic", reason)
    return _group_refusal("activations", activations)


FORMAT = Nvfp4()
