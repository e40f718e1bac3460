"""FP8 weights, with static, dynamic or no activation scales, in channels, tensors or blocks."""

from collections.abc import Mapping

from conf.formats.base.refusals import (
    Refusal,
    mismatch_refusal,
    refuse_activations,
    refuse_weights,
    scale_refusal,
    strategy_refusal,
)
from conf.formats.base.stored_format import ADA, HOPPER, KernelSupport, Machine, StoredFormat
from conf.formats.base.tensors import (
    NAIVE_QUANTIZED,
    StoredTensor,
    activation_tensors,
    codes,
    scales,
)
from conf.formats.quant_args import DYNAMIC, FLOAT, STATIC, QuantArgs, QuantGroup

LARGEST = 448.0
BLOCKS = ([32, 32], [64, 64], [128, 128])
WEIGHT_ONLY_BLOCKS = ([128, 128],)
FLOAT_QUANTIZED = "float-quantized"
EXPERT_SCALES = {
    ("channel", "token", DYNAMIC),
    ("tensor", "tensor", STATIC),
    ("block", "group", DYNAMIC),
}
"""Weights' strategy, activations' strategy and scales of vLLM's FP8 experts."""


class Fp8(StoredFormat):
    name = "fp8"
    spellings = (FLOAT_QUANTIZED, NAIVE_QUANTIZED)
    methods = ("fp8", "fbgemm_fp8")
    marks = ("weight_scale",)

    def covers(self, weights: QuantArgs | None, activations: QuantArgs | None) -> bool:
        return weights is not None and weights.type == FLOAT and weights.bits != 4

    def fits(self, group: QuantGroup) -> bool:
        needs_activations = group.format == FLOAT_QUANTIZED
        has_8_bits = group.weights is not None and group.weights.bits == 8
        has_needed_activations = group.activations is not None or not needs_activations
        return super().fits(group) and has_8_bits and has_needed_activations

    def read_other(self, method: str, content: Mapping[str, object]) -> QuantGroup:
        """Reads a config of vLLM or FBGEMM."""
        block = content.get("weight_block_size")
        weights = QuantArgs(FLOAT, 8, "tensor")
        if isinstance(block, list) and len(block) == 2:
            weights = QuantArgs(FLOAT, 8, "block", block_structure=block)
        scheme = STATIC if content.get("activation_scheme") == STATIC else DYNAMIC
        activations = QuantArgs(FLOAT, 8, "tensor", scales=scheme)
        return QuantGroup(method, weights, activations, format=method)

    def refusal(self, weights: QuantArgs, activations: QuantArgs | None) -> Refusal | None:
        refused = _weights_refusal(weights, activations is None)
        if refused is not None or activations is None:
            return refused
        refused = mismatch_refusal(weights, activations) or scale_refusal(activations)
        if refused is not None:
            return refused
        if weights.strategy == "block":
            return _block_activations_refusal(weights, activations)
        return strategy_refusal(activations)

    def code_range(self, weights: QuantArgs) -> tuple[float, float]:
        return -LARGEST, LARGEST

    def tensors(self, group: QuantGroup, rows: int, columns: int) -> dict[str, StoredTensor]:
        assert group.weights is not None
        return {
            "weight": codes("F8_E4M3", rows, columns),
            "weight_scale": scales(group.weights, rows, columns),
            **activation_tensors(group.activations),
        }

    def kernels(self, weights: QuantArgs | None) -> str:
        return (
            "CutlassFP8ScaledMM on NVIDIA since Ada and Hopper, weight-only Marlin on Ampere; a "
            "hundred times slower than INT8 on CPUs"
        )

    def support(self, weights: QuantArgs | None, machine: Machine) -> KernelSupport | None:
        if weights is None or weights.bits != 8:
            return None
        instead = "recipe=w8a8_smooth_gptq"
        if machine.capability is None:
            summary = "FP8 on a CPU, a hundred times slower than INT8"
            return KernelSupport(True, summary, instead)
        if machine.capability >= ADA:
            return KernelSupport(True, "CutlassFP8ScaledMM")
        capability = f"compute capability {machine.capability:g}"
        summary = f"weight-only Marlin, since {capability} multiplies no FP8 ({ADA:g} does)"
        return KernelSupport(True, summary, instead)

    def experts_refusal(self, weights: QuantArgs, activations: QuantArgs | None) -> str | None:
        scales_of = (
            (weights.strategy, activations.strategy, activations.scales) if activations else ()
        )
        if scales_of in EXPERT_SCALES:
            return None
        return (
            "FP8 experts need weights by channel and activations by token, both by tensor with "
            "static scales, or weights in blocks of 128 x 128"
        )

    def experts_support(self, weights: QuantArgs, machine: Machine) -> KernelSupport | None:
        is_block = weights.strategy == "block"
        if machine.capability is None:
            if is_block and machine.is_x86 and machine.has_amx:
                return KernelSupport(True, "CPUExpertsFp8")
            return machine.lacks_experts_kernel("FP8", "fp8_block and an x86 CPU with AMX")
        if machine.capability < ADA:
            return KernelSupport(True, "weight-only Marlin MoE")
        has_cutlass = machine.capability >= HOPPER and not is_block
        return KernelSupport(True, "CUTLASS or Triton MoE" if has_cutlass else "Triton MoE")


def _weights_refusal(weights: QuantArgs, is_weight_only: bool) -> Refusal | None:
    if weights.scales != STATIC:
        return refuse_weights("dynamic", "weights have static scales; use dynamic: false")
    if not weights.symmetric:
        return refuse_weights("symmetric", "float formats have no zero point; use symmetric: true")
    if weights.bits != 8:
        return refuse_weights("bits", "float weights have 8 bits (FP8) or 4 (NVFP4)")
    if weights.strategy not in ("tensor", "channel", "block"):
        return refuse_weights(
            "strategy", "FP8 kernels take a scale for each channel, tensor or block"
        )
    if weights.scale_type is not None:
        return refuse_weights("scale_type", "scales of FP8 weights are in the model's own type")
    blocks = WEIGHT_ONLY_BLOCKS if is_weight_only else BLOCKS
    if weights.strategy == "block" and weights.block_structure not in blocks:
        reason = "FP8 block kernels take blocks of 128 x 128"
        return refuse_weights(
            "block_structure", reason if is_weight_only else f"{reason}, 64 x 64 or 32 x 32"
        )
    return None


def _block_activations_refusal(weights: QuantArgs, activations: QuantArgs) -> Refusal | None:
    assert weights.block_structure is not None
    width = weights.block_structure[1]
    if activations.strategy != "group":
        return refuse_activations("strategy", "weights in blocks go with activations in groups")
    if activations.scales != DYNAMIC:
        return refuse_activations("dynamic", "activations in groups need dynamic: true")
    if activations.group_size != width:
        return refuse_activations(
            "group_size", f"groups are as wide as the weights' blocks, {width}"
        )
    return None


FORMAT = Fp8()
