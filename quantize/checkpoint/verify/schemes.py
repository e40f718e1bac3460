"""Which modules a config.json says are quantized, and how."""

import re
from dataclasses import dataclass, field
from typing import Any

import torch
from compressed_tensors.quantization import QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.lifecycle.initialize import is_cached_attention_module
from compressed_tensors.transform import TransformConfig
from compressed_tensors.utils import match_named_modules
from pydantic import ValidationError

from conf.errors import bad_input
from conf.files.json_files import mismatch, shown
from conf.models import CONFIG

METHOD = "compressed-tensors"
MIXED = "mixed-precision"
PACKED, NVFP4, MXFP4, MXFP8 = (
    "pack-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mxfp8-quantized",
)
INT, FLOAT, NAIVE = "int-quantized", "float-quantized", "naive-quantized"
FINISHED = ("compressed", "frozen")


@dataclass
class Schemes:
    """The scheme of every quantized linear layer, and what is wrong with the config."""

    linear: dict[str, QuantizationScheme] = field(default_factory=dict)
    attention: list[str] = field(default_factory=list)
    """Modules whose keys and values have stored scales."""
    attention_heads: bool = False
    """Whether there is one such scale for each head."""
    faults: list[str] = field(default_factory=list)


def read_schemes(config: dict[str, Any], model: torch.nn.Module, where: str) -> Schemes:
    """Reads `quantization_config`; none says that nothing is quantized."""
    content = config.get("quantization_config")
    if content is None:
        return Schemes()
    quantization = _typed(content, f"{where}: quantization_config")
    schemes = Schemes()
    if quantization.quantization_status not in FINISHED:
        schemes.faults.append(
            f"{CONFIG}: quantization_status is {plain(quantization.quantization_status)}, "
            "a finished checkpoint is compressed"
        )
    for name, scheme in quantization.config_groups.items():
        group = f"{CONFIG}: config_groups.{name}"
        own = plain(scheme.format)
        if own and quantization.format not in (own, MIXED):
            schemes.faults.append(
                f"{group}: format is {own}, the config's is {quantization.format}"
            )
        scheme.format = own or quantization.format
        schemes.faults += [f"{group}: {fault}" for fault in scheme_faults(scheme)]
        _match(schemes, group, scheme, model, quantization.ignore or [])
    _match_attention(schemes, quantization, model)
    return schemes


def _typed(content: dict[str, Any], where: str) -> QuantizationConfig:
    if content.get("quant_method") != METHOD:
        raise bad_input(
            f"{where}: quant_method is {shown(content.get('quant_method'))}; only "
            f"{METHOD} checkpoints can be proven"
        )
    stored = (content.get("sparsity_config") or {}).get("format", "dense")
    if stored != "dense":
        raise bad_input(f"{where}: sparsity_config.format is {shown(stored)}; dense can be proven")
    try:
        if content.get("transform_config"):
            TransformConfig.model_validate(content["transform_config"])
        quantization = QuantizationConfig.model_validate(content)
    except ValidationError as error:
        raise mismatch(error, content, where) from error
    except Exception as error:  # its validators raise whatever their arithmetic does
        reason = " ".join(str(error).split())[:300]
        raise bad_input(f"{where}: {type(error).__name__}: {reason}") from error
    if not quantization.config_groups and quantization.kv_cache_scheme is None:
        raise bad_input(f"{where}: config_groups is empty")
    for pattern in _patterns(quantization):
        try:
            re.compile(pattern)
        except re.error as error:
            raise bad_input(f"{where}: {shown(pattern)} is no pattern ({error})") from error
    return quantization


def _patterns(quantization: QuantizationConfig) -> list[str]:
    listed = [*(quantization.ignore or [])]
    for scheme in quantization.config_groups.values():
        listed += scheme.targets
    return [entry.removeprefix("re:") for entry in listed if entry.startswith("re:")]


def _match(
    schemes: Schemes,
    group: str,
    scheme: QuantizationScheme,
    model: torch.nn.Module,
    ignore: list[str],
) -> None:
    if not scheme.targets:
        schemes.faults.append(f"{group}: targets is empty")
    for target in scheme.targets:
        if not any(True for _ in match_named_modules(model, [target])):
            schemes.faults.append(f"{group}: the target {shown(target)} matches no module")
    for name, module in match_named_modules(model, scheme.targets, ignore):
        if isinstance(module, torch.nn.Linear):
            schemes.linear[name] = scheme


def _match_attention(
    schemes: Schemes, quantization: QuantizationConfig, model: torch.nn.Module
) -> None:
    numbers = quantization.kv_cache_scheme
    if numbers is None or numbers.dynamic:
        return
    schemes.attention_heads = plain(numbers.strategy) == "attn_head"
    schemes.attention = [
        name for name, module in model.named_modules() if is_cached_attention_module(module)
    ]
    if plain(numbers.type) != "float" or numbers.num_bits != 8 or not numbers.symmetric:
        schemes.faults.append(f"{CONFIG}: kv_cache_scheme is no symmetric 8-bit float")


def scheme_faults(scheme: QuantizationScheme) -> list[str]:
    """Whether a group's stored format fits the numbers that it is for."""
    weights, inputs = scheme.weights, scheme.input_activations
    if weights is None:
        return ["there are no weights"]
    kind = (plain(weights.type), weights.num_bits)
    form = scheme.format
    fits = {
        PACKED: kind[0] == "int" and 1 <= kind[1] <= 8,
        INT: kind[0] == "int" and 1 <= kind[1] <= 8 and inputs is not None,
        FLOAT: kind == ("float", 8) and inputs is not None,
        NAIVE: kind == ("float", 8) or (kind[0] == "int" and 1 <= kind[1] <= 8),
        NVFP4: kind == ("float", 4) and plain(weights.strategy) == "tensor_group",
        MXFP4: kind == ("float", 4) and plain(weights.strategy) == "group",
        MXFP8: kind == ("float", 8) and plain(weights.strategy) == "group",
    }
    if form not in fits:
        return [f"format is {shown(form)}; choose one of {', '.join(fits)}"]
    faults = []
    if not fits[form]:
        faults.append(f"format {form} does not fit {kind[0]}{kind[1]} weights")
    if weights.dynamic:
        faults.append("weights.dynamic is true; stored weights have stored scales")
    if kind[0] == "float" and not weights.symmetric:
        faults.append("weights.symmetric is false, floats have no zero point")
    if inputs is not None:
        faults += _input_faults(kind, (plain(inputs.type), inputs.num_bits))
    return faults


def _input_faults(weights: tuple[str, int], inputs: tuple[str, int]) -> list[str]:
    same = weights[0] == inputs[0] and inputs[1] in (4, 8, 16) and inputs[1] >= weights[1]
    mixed = weights == ("int", 4) and inputs == ("float", 8)
    if same or mixed:
        return []
    return [f"no engine multiplies {weights[0]}{weights[1]} weights by {inputs[0]}{inputs[1]}"]


def plain(value: Any) -> Any:
    """An enum's value; compressed-tensors gives the one or the other."""
    return getattr(value, "value", value)
