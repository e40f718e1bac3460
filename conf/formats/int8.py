"""INT8 weights and activations (W8A8), multiplied as integers."""

from conf.formats.base.refusals import (
    Refusal,
    mismatch_refusal,
    refuse_weights,
    scale_refusal,
    strategy_refusal,
)
from conf.formats.base.stored_format import BLACKWELL, KernelSupport, Machine, StoredFormat
from conf.formats.base.tensors import NAIVE_QUANTIZED, PACK_QUANTIZED, StoredTensor, integer_tensors
from conf.formats.quant_args import DYNAMIC, INT, STATIC, QuantArgs, QuantGroup


class Int8(StoredFormat):
    """Narrower integers with activations are stored the same way; no known kernel runs them."""

    name = "int8"
    spellings = ("int-quantized", NAIVE_QUANTIZED, PACK_QUANTIZED)
    marks = ("weight_scale",)

    def covers(self, weights: QuantArgs | None, activations: QuantArgs | None) -> bool:
        are_integers = weights is not None and weights.type == INT
        return are_integers and activations is not None and activations.type == INT

    def fits(self, group: QuantGroup) -> bool:
        return super().fits(group) and group.weights is not None and 1 <= group.weights.bits <= 8

    def refusal(self, weights: QuantArgs, activations: QuantArgs | None) -> Refusal | None:
        assert activations is not None
        return (
            _weights_refusal(weights)
            or mismatch_refusal(weights, activations)
            or scale_refusal(activations)
            or strategy_refusal(activations)
        )

    def tensors(self, group: QuantGroup, rows: int, columns: int) -> dict[str, StoredTensor]:
        return integer_tensors(group, rows, columns)

    def kernels(self, weights: QuantArgs | None) -> str:
        return "CutlassInt8ScaledMM on NVIDIA since Turing, CPUInt8ScaledMM on CPUs"

    def support(self, weights: QuantArgs | None, machine: Machine) -> KernelSupport | None:
        if weights is None or weights.bits != 8:
            return None
        if machine.capability is None:
            return KernelSupport(True, "CPUInt8ScaledMM")
        if machine.capability >= BLACKWELL:
            reason = f"vLLM has no INT8 kernel for compute capability {machine.capability:g}"
            return KernelSupport(False, reason, "fp8_dynamic")
        return KernelSupport(True, "CutlassInt8ScaledMM")

    def experts_refusal(self, weights: QuantArgs, activations: QuantArgs | None) -> str | None:
        assert activations is not None
        scales_of = weights.strategy, activations.strategy, activations.scales
        if weights.bits == 8 and scales_of == ("channel", "token", DYNAMIC):
            return None
        return "INT8 experts need weights by channel, and activations by token with dynamic: true"

    def experts_support(self, weights: QuantArgs, machine: Machine) -> KernelSupport | None:
        if machine.capability is not None:
            return KernelSupport(True, "Triton MoE")
        if machine.has_amx if machine.is_x86 else machine.has_i8mm:
            return KernelSupport(True, "CPUExpertsInt8")
        # vLLM does not check i8mm before it runs, and then ends with "Illegal instruction".
        return machine.lacks_experts_kernel("INT8", "AMX on x86, i8mm on ARM")


def _weights_refusal(weights: QuantArgs) -> Refusal | None:
    if weights.scales != STATIC:
        return refuse_weights("dynamic", "weights have static scales; use dynamic: false")
    if weights.scale_type is not None:
        return refuse_weights("scale_type", "scales of int weights are in the model's own type")
    if weights.bits != 8:
        reason = "int weights with quantized activations have 8 bits; without activations 2 to 8"
        return refuse_weights("bits", reason)
    if weights.strategy not in ("tensor", "channel"):
        return refuse_weights("strategy", "INT8 kernels take a scale for each channel or tensor")
    if not weights.symmetric:
        return refuse_weights("symmetric", "INT8 kernels take symmetric weights")
    return None


FORMAT = Int8()
