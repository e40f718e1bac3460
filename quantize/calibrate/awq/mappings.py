"""The layers of AWQ's mappings, and the scales that are tried for them."""

from collections.abc import Iterator
from typing import Any

import torch
from compressed_tensors.utils import get_execution_device
from llmcompressor.modifiers.transform.awq.mappings import ResolvedMapping
from torch.nn import Linear, Module

# Scores depend on a product of two of these outputs, which one layer's error does not describe.
# AWQ's authors do not clip them either.
NOT_CLIPPED = ("q_", "k_", "qkv", "Wqkv", "query", "key")


def compares_own_output(mapping: ResolvedMapping) -> bool:
    """Whether the loss is that of the one scaled layer's own output."""
    return mapping.parent is mapping.balance_layers[0] and isinstance(mapping.parent, Linear)


def quantized_layers(mapping: ResolvedMapping) -> list[Module]:
    return [
        layer
        for layer in mapping.balance_layers
        if getattr(getattr(layer, "quantization_scheme", None), "weights", None) is not None
    ]


def clippable_layers(mapping: ResolvedMapping) -> list[Module]:
    names = dict(zip(mapping.balance_layers, mapping.balance_names, strict=True))
    return [
        layer
        for layer in quantized_layers(mapping)
        if not names[layer].rpartition(".")[2].startswith(NOT_CLIPPED)
    ]


def add_sizes(
    stats: dict[str, list[Any]], name: str, _module: Module, args: tuple[Any, ...]
) -> None:
    """Adds up the sizes of the inputs, channel by channel, and counts the tokens."""
    tokens = args[0].detach().flatten(0, -2)
    total, count = tokens.abs().sum(dim=0, dtype=torch.float32), len(tokens)
    if name in stats:
        stats[name] = [stats[name][0] + total, stats[name][1] + count]
    else:
        stats[name] = [total, count]


def candidate_scales(modifier: Any, mapping: ResolvedMapping) -> Iterator[torch.Tensor]:
    """llm-compressor's grid of scales: mean sizes of inputs, and of weights with duo scaling."""
    device = get_execution_device(mapping.parent)
    total, count = modifier._smooth_activation_stats[mapping.smooth_name]
    inputs = total.to(device) / count
    grid = modifier._get_grid_search_params()
    if any(is_duo for _, is_duo in grid):
        weights = modifier._compute_layer_means(mapping.balance_layers).to(device)
    for ratio, is_duo in grid:
        scales = inputs.pow(ratio)
        if is_duo:
            scales = scales / (weights.pow(1 - ratio) + 1e-4)
        scales = scales.clamp(min=1e-4)
        scales = scales / (scales.max() * scales.min()).sqrt()
        yield torch.where(scales.isfinite(), scales, 1.0)
