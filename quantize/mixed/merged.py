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
PART_BYTES = 8 << 30  # most that the trials of several layers hold at once
FLOAT_BYTES = 4
EXPERTS_OF_A_TOKEN = 8  # for the memory that experts take together


@dataclass(frozen=True)
class MergedLayer:
    """Modules that have one format."""

    name: str
    modules: dict[str, torch.nn.Linear]

    @property
    def weights(self) -> int:
        return sum(module.in_features * module.out_features for module in self.modules.values())

    def trial_bytes(self, tokens: int) -> int:
        """What its trials hold: X'X of the inputs, and for so many tokens the inputs and the
        gradients at the outputs. Modules of one parent and width share their inputs."""
        inputs = {
            (name.rpartition(".")[0], module.in_features) for name, module in self.modules.items()
        }
        values: int = sum(width for _, width in inputs)
        values += sum(module.out_features for module in self.modules.values())
        parents = len({parent for parent, _ in inputs})
        if EXPERTS in next(iter(self.modules)) and parents > EXPERTS_OF_A_TOKEN:
            values = values * EXPERTS_OF_A_TOKEN // parents
        products: int = sum(width * width for _, width in inputs)
        return (products + tokens * values) * FLOAT_BYTES

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


def parts_in_memory(layers: Iterable[MergedLayer], tokens: int) -> Iterator[list[MergedLayer]]:
    """Layers whose trials on so many tokens fit into memory together."""
    part: list[MergedLayer] = []
    held = 0
    for layer in layers:
        needed = layer.trial_bytes(tokens)
        if part and held + needed > PART_BYTES:
            yield part
            part, held = [], 0
        part.append(layer)
        held += needed
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
