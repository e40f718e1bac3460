"""MXFP4 and MXFP8: floats in groups, with scales that are powers of two.

MXFP4 has activations of 4 bits. vLLM rounds them on Blackwell, whether the config asks for it or
not, and leaves them at 16 bit with Marlin on older GPUs (`CompressedTensorsW4A4Mxfp4`, 0.25.1 and
0.32). No recipe makes MXFP8; checkpoints of other tools can be verified.
"""

from dataclasses import replace

from conf.formats import fp8, nvfp4
from conf.formats.base.refusals import Refusal, mismatch_refusal, refuse_activations, refuse_weights
from conf.formats.base.stored_format import (
    AMPERE,
    BLACKWELL,
    KernelSupport,
    Machine,
    StoredFormat,
)
from conf.formats.base.tensors import (
    EXPONENTS,
    StoredTensor,
    activation_tensors,
    codes,
    fp4_pairs,
    scales,
)
from conf.formats.nvfp4 import has_exponent_scales, is_fp4
from conf.formats.nvfp4_activations import weight_only_summary
from conf.formats.quant_args import DYNAMIC, EXPONENT_SCALES, FLOAT, STATIC, QuantArgs, QuantGroup

MXFP4, MXFP8 = "mxfp4-pack-quantized", "mxfp8-quantized"
BITS = {MXFP4: 4, MXFP8: 8}
GROUP_SIZE = 32


def _group_refusal(tensor_kind: str, args: QuantArgs) -> Refusal | None:
    if args.strategy != "group" or args.group_size != GROUP_SIZE:
        field = "strategy" if args.strategy != "group" else "group_size"
        return Refusal(tensor_kind, field, f"MXFP4 has strategy group, with groups of {GROUP_SIZE}")
    if args.scale_type != EXPONENT_SCALES:
        return Refusal(tensor_kind, "scale_type", f"MXFP4 has {EXPONENT_SCALES} scales")
    if not args.symmetric:
        reason = "float formats have no zero point; use symmetric: true"
        return Refusal(tensor_kind, "symmetric", reason)
    return None


class Mx(StoredFormat):
    name = "mx"
    spellings = (MXFP4, MXFP8)
    packed_parts = ("weight_packed",)
    marks = ("weight_scale", "weight_packed")

    def covers(self, weights: QuantArgs | None, activations: QuantArgs | None) -> bool:
        return is_fp4(weights) and has_exponent_scales(weights)

    def fits(self, group: QuantGroup) -> bool:
        weights = group.weights
        if weights is None or weights.bits != BITS.get(group.format):
            return False
        return weights.type == FLOAT and weights.strategy == "group"

    def refusal(self, weights: QuantArgs, activations: QuantArgs | None) -> Refusal | None:
        refused = _group_refusal("weights", weights)
        if refused is not None:
            return refused
        if weights.scales != STATIC:
            return refuse_weights("dynamic", "weights have static scales; use dynamic: false")
        if activations is None:
            reason = (
                "vLLM rounds the activations of MXFP4 weights on Blackwell; give activations of "
                "the same format, or use nvfp4a16"
            )
            return refuse_weights("scale_type", reason)
        refused = mismatch_refusal(weights, activations) or _group_refusal(
            "activations", activations
        )
        if refused is None and activations.scales != DYNAMIC:
            return refuse_activations("dynamic", "MXFP4 activations need dynamic: true")
        return refused

    def code_range(self, weights: QuantArgs) -> tuple[float, float]:
        return _similar_format(weights).code_range(weights)

    def tensors(self, group: QuantGroup, rows: int, columns: int) -> dict[str, StoredTensor]:
        weights = group.weights
        assert weights is not None
        tensors = (
            {"weight_packed": fp4_pairs(rows, columns)}
            if group.format == MXFP4
            else {"weight": codes("F8_E4M3", rows, columns)}
        )
        exponents = scales(weights, rows, columns)
        tensors["weight_scale"] = replace(exponents, dtypes=("U8", "F8_E8M0"), encoding=EXPONENTS)
        return tensors | activation_tensors(group.activations)

    def kernels(self, weights: QuantArgs | None) -> str:
        assert weights is not None
        if weights.bits != 4:
            return _similar_format(weights).kernels(weights)
        return (
            "FlashInfer FP4 products on Blackwell; before it, since Ampere, Marlin as weight-only, "
            "with 16-bit activations"
        )

    def support(self, weights: QuantArgs | None, machine: Machine) -> KernelSupport | None:
        assert weights is not None
        if weights.bits != 4:
            return _similar_format(weights).support(weights, machine)
        if machine.capability is None:
            return machine.lacks_cpu_kernel("fp4")
        if machine.capability >= BLACKWELL:
            return KernelSupport(True, "native FP4")
        if machine.capability < AMPERE:
            reason = (
                f"vLLM runs MXFP4 on GPUs since Ampere ({AMPERE:g}), this has compute capability"
            )
            return KernelSupport(False, f"{reason} {machine.capability:g}", "nvfp4a16")
        return KernelSupport(True, weight_only_summary(machine), "recipe=nvfp4a16")

    def experts_refusal(self, weights: QuantArgs, activations: QuantArgs | None) -> str | None:
        return None


def _similar_format(weights: QuantArgs) -> StoredFormat:
    """The format with the same kernels and code range."""
    return nvfp4.FORMAT if weights.bits == 4 else fp8.FORMAT


FORMAT = Mx()
