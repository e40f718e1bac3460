"""Int weights of 2 to 8 bits (W4A16, W8A16), widened before they are multiplied."""

import math
from collections.abc import Mapping

from conf.formats.base.refusals import Refusal, refuse_weights
from conf.formats.base.stored_format import HOPPER, KernelSupport, Machine, StoredFormat
from conf.formats.base.tensors import (
    NAIVE_QUANTIZED,
    PACK_QUANTIZED,
    WORD,
    StoredTensor,
    integer_tensors,
)
from conf.formats.quant_args import INT, STATIC, QuantArgs, QuantGroup

GROUP_STEP = 16  # the smallest tile of the kernels
ON_GPU = "Machete on Hopper, Marlin on NVIDIA since Turing"
ON_X86 = "CPUWNA16 on x86 CPUs"


class WeightOnlyInt(StoredFormat):
    name = "weight_only_int"
    spellings = (PACK_QUANTIZED, NAIVE_QUANTIZED)
    methods = ("awq", "gptq", "awq_marlin", "gptq_marlin")
    packed_parts = ("weight_packed", "qweight")
    other_parts = ("_scale", "_zero_point", "scales", "qzeros")
    marks = ("weight_scale", "weight_packed", "qweight")

    def covers(self, weights: QuantArgs | None, activations: QuantArgs | None) -> bool:
        return weights is not None and weights.type == INT and activations is None

    def fits(self, group: QuantGroup) -> bool:
        return super().fits(group) and group.weights is not None and 1 <= group.weights.bits <= 8

    def read_other(self, method: str, content: Mapping[str, object]) -> QuantGroup:
        """Reads a config of GPTQ or AWQ."""
        bits = content.get("bits") or content.get("w_bit") or 0
        size = content.get("group_size") or content.get("q_group_size") or -1
        assert isinstance(bits, int)
        assert isinstance(size, int)
        has_groups = size > 0
        strategy = "group" if has_groups else "channel"
        weights = QuantArgs(INT, bits, strategy, size if has_groups else None)
        return QuantGroup(method, weights, format=method)

    def refusal(self, weights: QuantArgs, activations: QuantArgs | None) -> Refusal | None:
        if weights.scales != STATIC:
            return refuse_weights("dynamic", "weights have static scales; use dynamic: false")
        if weights.scale_type is not None:
            return refuse_weights("scale_type", "scales of int weights are in the model's own type")
        if not 2 <= weights.bits <= 8:
            return refuse_weights("bits", "weight-only kernels take int weights of 2 to 8 bits")
        if weights.strategy not in ("channel", "group"):
            reason = "weight-only kernels take a scale for each channel or group"
            return refuse_weights("strategy", reason)
        if weights.group_size is not None and weights.group_size % GROUP_STEP:
            reason = f"weight-only kernels take groups that are multiples of {GROUP_STEP}, as 128"
            return refuse_weights("group_size", reason)
        return None

    def tensors(self, group: QuantGroup, rows: int, columns: int) -> dict[str, StoredTensor]:
        return integer_tensors(group, rows, columns)

    def column_step(self, weights: QuantArgs) -> int:
        """A row ends at the end of a packed word."""
        return WORD // math.gcd(WORD, weights.bits)

    def kernels(self, weights: QuantArgs | None) -> str:
        assert weights is not None
        if weights.bits not in (4, 8) or (weights.bits == 8 and not weights.symmetric):
            return "Humming on NVIDIA since Turing, from vLLM 0.32 on"
        if not weights.symmetric:
            return f"Marlin on NVIDIA since Turing, {ON_X86}"
        return f"{ON_GPU}, {ON_X86}" if weights.bits == 4 else ON_GPU

    def support(self, weights: QuantArgs | None, machine: Machine) -> KernelSupport | None:
        if weights is None or weights.bits not in (4, 8):
            return None
        if machine.capability is not None:
            return KernelSupport(True, "Machete" if machine.capability == HOPPER else "Marlin")
        if weights.bits == 4 and machine.is_x86:
            return KernelSupport(True, "CPUWNA16")
        return machine.lacks_cpu_kernel(f"w{weights.bits}a16")

    def experts_refusal(self, weights: QuantArgs, activations: QuantArgs | None) -> str | None:
        if weights.bits == 4 or (weights.bits == 8 and weights.symmetric):
            return None
        return "experts take int weights of 4 bits, or of 8 bits without zero points"

    def experts_support(self, weights: QuantArgs, machine: Machine) -> KernelSupport | None:
        if machine.capability is not None:
            return KernelSupport(True, "Marlin MoE")
        is_taken = weights.bits == 4 and weights.symmetric and weights.group_size != 32
        if machine.is_x86 and machine.has_amx and is_taken:
            return KernelSupport(True, "CPUExpertsInt4")
        needed = "int4 without zero points and an x86 CPU with AMX"
        return machine.lacks_experts_kernel(f"int{weights.bits}", needed)


FORMAT = WeightOnlyInt()
