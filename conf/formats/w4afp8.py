"""INT4 weights in groups of 128 with FP8 activations (llm-compressor's scheme W4AFP8).

The weights are stored as those of W4A16; only the config says that activations are FP8.
"""

from conf.formats.base.refusals import Refusal, refuse_activations, refuse_weights, scale_refusal
from conf.formats.base.stored_format import HOPPER, KernelSupport, Machine, StoredFormat
from conf.formats.base.tensors import PACK_QUANTIZED, WORD, StoredTensor, integer_tensors
from conf.formats.quant_args import DYNAMIC, FLOAT, INT, STATIC, QuantArgs, QuantGroup

BITS, GROUP_SIZE = 4, 128
KERNEL = "CutlassW4A8"


class W4AFp8(StoredFormat):
    """vLLM takes exactly this: `_is_fp8_w4a8_sm90` in its choice of schemes, 0.25.1 and 0.32."""

    name = "w4afp8"
    spellings = (PACK_QUANTIZED,)
    stated_spelling = PACK_QUANTIZED  # inferred would be int-quantized, which vLLM cannot load
    packed_parts = ("weight_packed",)
    marks = ("weight_scale", "weight_packed")

    def covers(self, weights: QuantArgs | None, activations: QuantArgs | None) -> bool:
        has_int_weights = weights is not None and weights.type == INT
        return has_int_weights and activations is not None and activations.type == FLOAT

    def fits(self, group: QuantGroup) -> bool:
        return super().fits(group) and group.weights is not None and group.weights.bits == BITS

    def refusal(self, weights: QuantArgs, activations: QuantArgs | None) -> Refusal | None:
        assert activations is not None
        return _weights_refusal(weights) or _activations_refusal(activations)

    def multiplies(self, weights: QuantArgs, activations: QuantArgs) -> bool:
        return (weights.number, activations.number) == ("int4", "float8")

    def tensors(self, group: QuantGroup, rows: int, columns: int) -> dict[str, StoredTensor]:
        return integer_tensors(group, rows, columns)

    def column_step(self, weights: QuantArgs) -> int:
        """A row ends at the end of a packed word."""
        return WORD // BITS

    def kernels(self, weights: QuantArgs | None) -> str:
        return f"{KERNEL} on Hopper"

    def support(self, weights: QuantArgs | None, machine: Machine) -> KernelSupport | None:
        if weights is None or weights.bits != BITS:
            return None
        if machine.capability is None:
            reason = machine.lacks_cpu_kernel("int4 weights with FP8 activations").summary
            return KernelSupport(False, reason, "w4a16_gptq")
        if machine.capability == HOPPER:
            return KernelSupport(True, KERNEL)
        reason = (
            f"vLLM multiplies int4 weights with FP8 activations on Hopper only ({HOPPER}), this "
            f"has compute capability {machine.capability:g}"
        )
        return KernelSupport(False, reason, "w4a16_gptq")

    def experts_refusal(self, weights: QuantArgs, activations: QuantArgs | None) -> str | None:
        return None

    def experts_support(self, weights: QuantArgs, machine: Machine) -> KernelSupport | None:
        return KernelSupport(True, "CUTLASS W4A8 MoE") if machine.capability == HOPPER else None


def _weights_refusal(weights: QuantArgs) -> Refusal | None:
    if weights.bits != BITS:
        reason = (
            "no kernel multiplies int weights with float activations, except int4 in groups of "
            f"{GROUP_SIZE}"
        )
        return refuse_activations("type", reason)
    if weights.scales != STATIC:
        return refuse_weights("dynamic", "weights have static scales; use dynamic: false")
    if weights.scale_type is not None:
        return refuse_weights("scale_type", "scales of int weights are in the model's own type")
    if weights.strategy != "group":
        reason = f"int4 weights with FP8 activations have groups of {GROUP_SIZE}"
        return refuse_weights("strategy", reason)
    if weights.group_size != GROUP_SIZE:
        reason = f"int4 weights with FP8 activations have groups of {GROUP_SIZE}"
        return refuse_weights("group_size", reason)
    if not weights.symmetric:
        reason = "int4 weights with FP8 activations have no zero point; use symmetric: true"
        return refuse_weights("symmetric", reason)
    return None


def _activations_refusal(activations: QuantArgs) -> Refusal | None:
    if activations.bits != 8:
        return refuse_activations("bits", "float activations of int4 weights have 8 bits (FP8)")
    refused = scale_refusal(activations)
    if refused is not None:
        return refused
    if activations.strategy != "token":
        reason = "FP8 activations of int4 weights have a scale for each token"
        return refuse_activations("strategy", reason)
    if activations.scales != DYNAMIC:
        reason = "FP8 activations of int4 weights need dynamic: true"
        return refuse_activations("dynamic", reason)
    return None


FORMAT = W4AFp8()
