"""Reads which modules a config.json declares quantized, and how."""

import re
from dataclasses import dataclass, field
from typing import Any

import torch
from compressed_tensors import quantization as library
from compressed_tensors.quantization.lifecycle.initialize import is_cached_attention_module
from compressed_tensors.transform import TransformConfig
from compressed_tensors.utils import match_named_modules
from pydantic import ValidationError

from conf.errors import bad_input
from conf.files.json_files import JsonObject, mismatch, shown
from conf.formats import vptq
from conf.formats.quant_args import DYNAMIC, FLOAT, QuantGroup, QuantizationConfig
from conf.formats.quantization_config import COMPRESSED_TENSORS, DENSE, KEY, read_quantization
from conf.formats.registry import format_of, spellings
from conf.models import CONFIG
from quantize.vptq.config import config_faults, linear_groups

MIXED = "mixed-precision"
FINISHED = ("compressed", "frozen")


@dataclass
class Schemes:
    """The group of every quantized linear layer, and the faults of the config."""

    linear: dict[str, QuantGroup] = field(default_factory=dict)
    attention: list[str] = field(default_factory=list)
    """Modules whose keys and values have stored scales."""
    attention_heads: bool = False
    """Whether there is one such scale for each head."""
    faults: list[str] = field(default_factory=list)


def read_schemes(config: JsonObject, model: torch.nn.Module, where: str) -> Schemes:
    """Reads `quantization_config`; without one, nothing is quantized."""
    content = config.get(KEY)
    if content is None:
        return Schemes()
    stated = read_quantization(content, f"{where}: {KEY}")
    if stated is not None and stated.method == vptq.METHOD:
        assert isinstance(content, dict)
        linear = linear_groups(stated, model)
        return Schemes(linear, faults=config_faults(content, linear, model))
    quantization = _checked_config(content, f"{where}: {KEY}")
    schemes = Schemes()
    if quantization.status not in FINISHED:
        schemes.faults.append(
            f"{CONFIG}: quantization_status is {quantization.status}, "
            "a finished checkpoint is compressed"
        )
    for group in quantization.groups:
        place = f"{CONFIG}: config_groups.{group.name}"
        if group.own_format and quantization.format not in (group.own_format, MIXED):
            schemes.faults.append(
                f"{place}: format is {group.own_format}, the config's is {quantization.format}"
            )
        schemes.faults += [f"{place}: {fault}" for fault in group_faults(group)]
        _add_linears(schemes, place, group, model, quantization.ignore)
    _add_attention(schemes, quantization, model)
    return schemes


def _checked_config(content: Any, where: str) -> QuantizationConfig:
    """The config with compressed-tensors' defaults, after its own checks."""
    stated = read_quantization(content, where)
    if stated is None or stated.method != COMPRESSED_TENSORS:
        method = stated.method if stated is not None else None
        raise bad_input(
            f"{where}: quant_method is {shown(method)}; only {COMPRESSED_TENSORS} and "
            f"{vptq.METHOD} checkpoints can be verified"
        )
    if stated.sparsity not in (None, DENSE):
        raise bad_input(
            f"{where}: sparsity_config.format is {shown(stated.sparsity)}; only dense can be "
            "verified"
        )
    try:
        if content.get("transform_config"):
            TransformConfig.model_validate(content["transform_config"])
        completed = library.QuantizationConfig.model_validate(content).model_dump(mode="json")
    except ValidationError as error:
        raise mismatch(error, content, where) from error
    except Exception as error:  # its validators raise errors of any type
        reason = " ".join(str(error).split())[:300]
        raise bad_input(f"{where}: {type(error).__name__}: {reason}") from error
    quantization = read_quantization(completed, where)
    assert quantization is not None
    if not quantization.groups and quantization.kv_cache is None:
        raise bad_input(f"{where}: config_groups is empty")
    for pattern in _regular_expressions(quantization):
        try:
            re.compile(pattern)
        except re.error as error:
            raise bad_input(f"{where}: {shown(pattern)} is no pattern ({error})") from error
    return quantization


def _regular_expressions(quantization: QuantizationConfig) -> list[str]:
    targets = [target for group in quantization.groups for target in group.targets]
    entries = [*quantization.ignore, *targets]
    return [entry.removeprefix("re:") for entry in entries if entry.startswith("re:")]


def _add_linears(
    schemes: Schemes, place: str, group: QuantGroup, model: torch.nn.Module, ignore: list[str]
) -> None:
    if not group.targets:
        schemes.faults.append(f"{place}: targets is empty")
    for target in group.targets:
        if not any(True for _ in match_named_modules(model, [target])):
            schemes.faults.append(f"{place}: the target {shown(target)} matches no module")
    for name, module in match_named_modules(model, group.targets, ignore):
        if isinstance(module, torch.nn.Linear):
            schemes.linear[name] = group


def _add_attention(
    schemes: Schemes, quantization: QuantizationConfig, model: torch.nn.Module
) -> None:
    cache = quantization.kv_cache
    if cache is None or cache.scales == DYNAMIC:
        return
    schemes.attention_heads = cache.strategy == "attn_head"
    schemes.attention = [
        name for name, module in model.named_modules() if is_cached_attention_module(module)
    ]
    if (cache.type, cache.bits, cache.symmetric) != (FLOAT, 8, True):
        schemes.faults.append(f"{CONFIG}: kv_cache_scheme is no symmetric 8-bit float")


def group_faults(group: QuantGroup) -> list[str]:
    """Faults of a group whose stored format does not fit its numbers."""
    weights, activations = group.weights, group.activations
    if weights is None:
        return ["there are no weights"]
    if group.format not in spellings():
        return [f"format is {shown(group.format)}; choose one of {', '.join(spellings())}"]
    stored, faults = format_of(group), []
    if stored is None or group.format not in stored.spellings or not stored.fits(group):
        faults.append(f"format {group.format} does not fit {weights.number} weights")
    if weights.dynamic:
        faults.append("weights.dynamic is true; stored weights have stored scales")
    if weights.type == FLOAT and not weights.symmetric:
        faults.append("weights.symmetric is false, floats have no zero point")
    if stored and activations and not stored.multiplies(weights, activations):
        faults.append(f"no engine multiplies {weights.number} weights by {activations.number}")
    return faults
