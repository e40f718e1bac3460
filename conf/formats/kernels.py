"""Which vLLM kernels run a recipe's format, and on which hardware."""

from dataclasses import dataclass
from typing import Any

from conf.schema.recipe import RecipeConfig

# From vLLM 0.25.1 and 0.32.0. Seen running: the Hopper kernels on an H200, the INT8 kernel on ARM.
INT8 = "CutlassInt8ScaledMM on NVIDIA since Turing, CPUInt8ScaledMM on CPUs"
FP8 = "CutlassFP8ScaledMM on NVIDIA since Ada and Hopper, weight-only Marlin on Ampere"
WEIGHT_ONLY = "Machete on Hopper, Marlin on NVIDIA since Turing"
WEIGHT_ONLY_4 = f"{WEIGHT_ONLY}, CPUWNA16 on x86 CPUs"
ASYMMETRIC = "Marlin on NVIDIA since Turing, CPUWNA16 on x86 CPUs"
OTHER_WIDTHS = "Humming on NVIDIA since Turing, from vLLM 0.32 on"
NVFP4 = "weight-only Marlin on NVIDIA since Turing, native on Blackwell"
DENSE = "the 16-bit kernels; vLLM has none for 2:4"


def kernels(recipe: RecipeConfig) -> str:
    """The kernels for a recipe, in words."""
    weights, activations = recipe.weights, recipe.activations
    if weights is None:
        return DENSE
    if activations is not None:
        return INT8 if weights.type == "int" else FP8
    if weights.type == "float":
        return NVFP4 if weights.bits == 4 else FP8
    if weights.bits not in (4, 8) or (weights.bits == 8 and not weights.symmetric):
        return OTHER_WIDTHS
    if not weights.symmetric:
        return ASYMMETRIC
    return WEIGHT_ONLY_4 if weights.bits == 4 else WEIGHT_ONLY


@dataclass(frozen=True)
class Support:
    """Whether a checkpoint's format runs on a machine, and in which words to say it."""

    runs: bool
    words: str
    """The kernel, or why there is none."""
    instead: str = ""
    """What to serve where it does not run, or runs badly."""


TURING, ADA, HOPPER, BLACKWELL = 7.5, 8.9, 9.0, 10.0


def support(quantization: dict[str, Any], capability: float | None, machine: str) -> Support:
    """What vLLM does with a quantization config: on a GPU of that compute capability, or on a CPU
    of that machine where there is no GPU."""
    if quantization.get("sparsity_config"):
        return Support(
            False,
            "it is stored sparse, and vLLM has had no kernels for 2:4 since 0.19",
            "the same recipe of this version, which stores pruned weights dense",
        )
    if capability is not None and capability < TURING:
        words = f"vLLM needs a GPU since Turing (7.5), this has compute capability {capability:g}"
        return Support(False, words, "it on another GPU")
    if not quantization:
        return Support(True, "the 16-bit kernels")
    kind = format_of(quantization)
    if kind == "":
        method = quantization.get("quant_method", "unnamed")
        return Support(
            True, f"whether vLLM has kernels for its format ({method}) is not known here"
        )
    return _on_cpu(kind, machine) if capability is None else _on_gpu(kind, capability)


def format_of(quantization: dict[str, Any]) -> str:
    """w8a8_int, w8a8_fp8, w8a16, w4a16 or fp4; nothing for a format that is not known here."""
    method = str(quantization.get("quant_method", ""))
    if method in ("awq", "gptq", "awq_marlin", "gptq_marlin"):
        bits = int(quantization.get("bits") or quantization.get("w_bit") or 0)
        return {8: "w8a16", 4: "w4a16"}.get(bits, "")
    if method in ("fp8", "fbgemm_fp8"):
        return "w8a8_fp8"
    groups = list((quantization.get("config_groups") or {}).values())
    if not groups:
        return ""
    weights = groups[0].get("weights") or {}
    activations = groups[0].get("input_activations")
    bits, is_float = int(weights.get("num_bits") or 0), weights.get("type") == "float"
    if is_float:
        return {4: "fp4", 8: "w8a8_fp8"}.get(bits, "")
    if activations:
        return "w8a8_int" if bits == 8 else ""
    return {8: "w8a16", 4: "w4a16"}.get(bits, "")


def _on_cpu(kind: str, machine: str) -> Support:
    x86 = machine in ("x86_64", "AMD64")
    if kind == "w8a8_int":
        return Support(True, "CPUInt8ScaledMM")
    if kind == "w4a16" and x86:
        return Support(True, "CPUWNA16")
    if kind == "w8a8_fp8":
        return Support(
            True, "FP8 on a CPU, a hundred times slower than INT8", "recipe=w8a8_smooth_gptq"
        )
    return Support(False, f"vLLM has no CPU kernel for {kind} on {machine}", "w8a8_smooth_gptq")


def _on_gpu(kind: str, capability: float) -> Support:
    named = f"compute capability {capability:g}"
    if kind == "w8a8_int":
        if capability >= BLACKWELL:
            return Support(False, f"vLLM has no INT8 kernel for {named}", "fp8_dynamic")
        return Support(True, "CutlassInt8ScaledMM")
    if kind == "w8a8_fp8":
        if capability >= ADA:
            return Support(True, "CutlassFP8ScaledMM")
        words = f"weight-only Marlin, since {named} multiplies no FP8 (8.9 does)"
        return Support(True, words, "recipe=w8a8_smooth_gptq")
    if kind == "fp4":
        return Support(True, "native FP4" if capability >= BLACKWELL else "weight-only Marlin")
    return Support(True, "Machete" if capability == HOPPER else "Marlin")
