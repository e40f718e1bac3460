"""The layers of AWQ's mappings, and the scales that are tried for them."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from compressed_tensors.utils import get_execution_device, patch_attr
from llmcompressor.modifiers.transform.awq import dynamic_mappings
from llmcompressor.modifiers.transform.awq.mappings import AWQMapping, ResolvedMapping
from torch.nn import Linear, Module

from quantize.parallel.ranks import RANKS
from quantize.parallel.shards import ShardedSum

# Scores depend on a product of two of these outputs, which one layer's error does not describe.
# AWQ's authors do not clip them either.
NOT_CLIPPED = ("q_", "k_", "qkv", "Wqkv", "query", "key")
OWN_MAPPINGS = {
    "MixtralForCausalLM": [
        AWQMapping("re:.*input_layernorm$", ["re:.*q_proj$", "re:.*k_proj$", "re:.*v_proj$"]),
        AWQMapping("re:.*v_proj$", ["re:.*o_proj$"]),
        AWQMapping(
            "re:.*post_attention_layernorm$",
            [
                r"re:.*block_sparse_moe\.gate$",
                r"re:.*experts\.\d+\.w1$",
                r"re:.*experts\.\d+\.w3$",
            ],
        ),
        AWQMapping(r"re:.*experts\.\d+\.w3$", [r"re:.*experts\.\d+\.w2$"]),
    ],
}
"""Of architectures for which llm-compressor has none: its default names no expert of Mixtral."""


@contextmanager
def own_mappings() -> Iterator[None]:
    """llm-compressor finds our mappings beside its own."""
    known = dynamic_mappings.AWQ_MAPPING_REGISTRY
    with patch_attr(dynamic_mappings, "AWQ_MAPPING_REGISTRY", OWN_MAPPINGS | known):
        yield


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


class InputSizes:
    """The sizes of inputs, channel by channel, and the number of tokens, by a mapping's name."""

    def __init__(self) -> None:
        self._sums: dict[str, ShardedSum] = defaultdict(ShardedSum)
        self._counts: dict[str, int] = defaultdict(int)

    def add(self, name: str, _module: Module, args: tuple[Any, ...]) -> None:
        """Adds the input of one call."""
        tokens = args[0].detach().flatten(0, -2)
        self._sums[name].add(tokens.abs().sum(dim=0, dtype=torch.float32))
        self._counts[name] += len(tokens)

    def take(self) -> dict[str, list[Any]]:
        """The sum and the count of each name, over all ranks; starts again with none."""
        counts = RANKS.get().objects(dict(self._counts))
        if any(list(count) != list(counts[0]) for count in counts):
            raise RuntimeError("the processes have seen calls of different modules")
        totals = {
            name: [total.total(), sum(count[name] for count in counts)]
            for name, total in self._sums.items()
        }
        self._sums.clear()
        self._counts.clear()
        return totals


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
