"""What engines run: which number types, with which kernels, on which machine.

Taken from vLLM 0.25.1's and 0.32.0's choice of schemes (`compressed_tensors.py`,
`_get_scheme_from_parts`) and from the formats that compressed-tensors 0.19 writes. Observed to run:
the Hopper kernels on an H200, the INT8 kernel on ARM. `refusal` allows a format that some machine
has a kernel for; `support` tells whether a given machine has one.
"""

from dataclasses import replace

from conf.formats.base.refusals import Refusal
from conf.formats.base.stored_format import TURING, KernelSupport, Machine
from conf.formats.quant_args import FLOAT, STATIC, QuantArgs, QuantGroup, QuantizationConfig
from conf.formats.quantization_config import COMPRESSED_TENSORS
from conf.formats.registry import covering, format_of, format_of_config


def refusal(weights: QuantArgs, activations: QuantArgs | None) -> Refusal | None:
    """Why no engine runs these weights and activations; None where one does."""
    refusals = [stored.refusal(weights, activations) for stored in covering(weights, activations)]
    if not refusals:
        reason = f"no stored format has {weights.number} weights"
        return Refusal("weights", "type", reason)
    return None if None in refusals else refusals[0]


def kv_refusal(args: QuantArgs) -> Refusal | None:
    """Why vLLM takes no such scales for its KV cache; None where it does."""
    if (args.type, args.bits) != (FLOAT, 8):
        field = "type" if args.type != FLOAT else "bits"
        return Refusal("kv_cache", field, "vLLM's quantized KV cache is FP8: float with 8 bits")
    if args.strategy not in ("tensor", "attn_head"):
        return Refusal("kv_cache", "strategy", "a KV cache has a scale for each tensor")
    if not args.symmetric:
        return Refusal("kv_cache", "symmetric", "float formats have no zero point")
    if args.scales != STATIC:
        return Refusal("kv_cache", "dynamic", "scales of a KV cache are calibrated: dynamic: false")
    if args.scale_type is not None:
        return Refusal("kv_cache", "scale_type", "scales of a KV cache are in the model's own type")
    return None


def stated_spelling(weights: QuantArgs, activations: QuantArgs | None) -> str | None:
    """The format that a scheme must name; None where compressed-tensors infers the right one."""
    return next((stored.stated_spelling for stored in covering(weights, activations)), None)


def kernels(weights: QuantArgs | None, activations: QuantArgs | None) -> str:
    """vLLM's kernels for a recipe's number types, on all hardware."""
    return covering(weights, activations)[0].kernels(weights)


def experts_refusal(weights: QuantArgs, activations: QuantArgs | None) -> str | None:
    """Why no engine runs a mixture's experts in these number types; None where one does."""
    reasons = [
        each.experts_refusal(weights, activations) for each in covering(weights, activations)
    ]
    return None if None in reasons or not reasons else reasons[0]


def support(
    config: QuantizationConfig | None, machine: Machine, has_quantized_experts: bool = False
) -> KernelSupport:
    """Whether and with which kernels vLLM runs a quantization config on a machine."""
    kernel_support = _linear_support(config, machine)
    if not kernel_support.runs or config is None or not has_quantized_experts:
        return kernel_support
    experts = _experts_support(config, machine)
    if experts is None or not experts.runs:
        return experts or kernel_support
    return replace(kernel_support, summary=f"{kernel_support.summary}; experts: {experts.summary}")


def _experts_support(config: QuantizationConfig, machine: Machine) -> KernelSupport | None:
    """The same for experts; None where it is unknown. Where groups differ, each may hold some."""
    supports = [_group_experts_support(config, group, machine) for group in _layer_groups(config)]
    return _together([entry for entry in supports if entry is not None])


def _group_experts_support(
    config: QuantizationConfig, group: QuantGroup, machine: Machine
) -> KernelSupport | None:
    stored = format_of_config(config) if len(config.groups) == 1 else format_of(group)
    if stored is None or group.weights is None:
        return None
    if config.method == COMPRESSED_TENSORS:
        refused = stored.experts_refusal(group.weights, group.activations)
        if refused is not None:
            return KernelSupport(False, refused, "another recipe")
    return stored.experts_support(group.weights, machine)


def _layer_groups(config: QuantizationConfig) -> list[QuantGroup]:
    """The groups without that of the output head."""
    return [group for group in config.groups if not group.is_head] or config.groups


def _linear_support(config: QuantizationConfig | None, machine: Machine) -> KernelSupport:
    """The same without experts. Every group of layers counts; the output head does not."""
    together = _together(_supports(config, machine))
    if together is not None and not together.runs:
        return together
    if machine.capability is not None and machine.capability < TURING:
        reason = (
            f"vLLM needs a GPU since Turing ({TURING:g}), this has compute capability "
            f"{machine.capability:g}"
        )
        return KernelSupport(False, reason, "it on another GPU")
    return together or _unknown_support(config)


def _together(supports: list[KernelSupport]) -> KernelSupport | None:
    """The first one that does not run, else all of them in one; None where nothing is known."""
    refused = next((entry for entry in supports if not entry.runs), None)
    if refused is not None or not supports:
        return refused
    summary = ", ".join(dict.fromkeys(entry.summary for entry in supports))
    instead = next((entry.instead for entry in supports if entry.instead), "")
    return KernelSupport(True, summary, instead)


def _supports(config: QuantizationConfig | None, machine: Machine) -> list[KernelSupport]:
    """The support of each group of layers, as far as it is known."""
    whole = format_of_config(config)
    groups = config.groups if config is not None else []
    if config is None or whole is None or not groups or whole.is_whole_config(config):
        weights = groups[0].weights if groups else None
        found = [whole.support(weights, machine) if whole is not None else None]
    else:
        stored = [(format_of(group), group.weights) for group in _layer_groups(config)]
        found = [form.support(weights, machine) for form, weights in stored if form is not None]
    return [entry for entry in found if entry is not None]


def _unknown_support(config: QuantizationConfig | None) -> KernelSupport:
    method = (config.method if config is not None else None) or "unnamed"
    return KernelSupport(
        True, f"whether vLLM has kernels for its format ({method}) is not known here"
    )
