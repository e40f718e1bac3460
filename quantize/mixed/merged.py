"""Modules that an engine merges into one matrix: they need one format."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from conf.formats.base.tensors import scale_shape
from conf.formats.quant_args import QuantArgs
from conf.formats.registry import covering
from conf.schema.mixed import LayerFormat

# vLLM loads q, k and v as qkv_proj, gate and up as gate_up_proj.
MERGED = {
    "q_proj": "qkv_proj",
    "k_proj": "qkv_proj",
    "v_proj": "qkv_proj",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
}
EXPERTS = ".experts."
FULL_BITS = 16
SCALE_BITS = {None: 16, "fp8": 8}
PRODUCT_BYTES = 8 << 30  # most that X'X of several layers take at once
FLOAT_BYTES = 4


@dataclass(frozen=True)
class MergedLayer:
    """Modules that have one format."""

    name: str
    modules: dict[str, torch.nn.Linear]

    @property
    def weights(self) -> int:
        return sum(module.in_features * module.out_features for module in self.modules.values())

    @property
    def product_bytes(self) -> int:
        """The size of X'X of the inputs; modules of one parent and width share theirs."""
        widths = {
            (name.rpartition(".")[0], module.in_features) for name, module in self.modules.items()
        }
        return sum(width * width * FLOAT_BYTES for _, width in widths)

    def bits(self, layer_format: LayerFormat) -> int:
        """The size of all modules in a format, with scales and zero points."""
        weights, activations = layer_format.weights, layer_format.activations
        if weights is None:
            return self.weights * FULL_BITS
        stored = weights.stored
        narrow = covering(stored, activations.stored if activations else None)[0].bits(stored)
        scales = sum(_scale_bits(stored, module) for module in self.modules.values())
        return math.ceil(self.weights * narrow) + scales


def merged_layers(modules: dict[str, torch.nn.Linear]) -> list[MergedLayer]:
    """The modules by the matrix that an engine makes of them, in the model's order."""
    by_name: dict[str, dict[str, torch.nn.Linear]] = defaultdict(dict)
    for name, module in modules.items():
        by_name[_merged_name(name)][name] = module
    return [MergedLayer(name, members) for name, members in by_name.items()]


def parts_in_memory(layers: Iterable[MergedLayer]) -> Iterator[list[MergedLayer]]:
    """Layers whose X'X fit into memory together."""
    part: list[MergedLayer] = []
    for layer in layers:
        if part and sum(each.product_bytes for each in (*part, layer)) > PRODUCT_BYTES:
            yield part
            part = []
        part.append(layer)
    if part:
        yield part


def _merged_name(name: str) -> str:
    if EXPERTS in name:  # the experts of a layer are one tensor
        return name.partition(EXPERTS)[0] + EXPERTS.rstrip(".")
    parent, _, own_name = name.rpartition(".")
    return f"{parent}.{MERGED.get(own_name, own_name)}"


def _scale_bits(weights: QuantArgs, module: torch.nn.Linear) -> int:
    scales = math.prod(scale_shape(weights, module.out_features, module.in_features))
    zero_points = 0 if weights.symmetric else weights.bits
    return scales * (SCALE_BITS[weights.scale_type] + zero_points)
