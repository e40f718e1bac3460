"""A layer's tensors in vLLM while a checkpoint is loaded: as stored, part by part.

vLLM merges layers, such as q, k and v. Each of them has its own codebooks and indices, which may
differ in size. A parameter holds the tensors of one name of all parts, one after another.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from conf.formats.quant_args import Codebooks, QuantGroup, vector_args
from conf.formats.vptq import FORMAT, INDICES, METHOD, OUTLIER_INDICES
from quantize.vptq.layer import VectorLayer
from quantize.vptq.linear import TYPES

SHARDS = {"q": 0, "k": 1, "v": 2}
HALF_OF_16_BITS, ALL_OF_16_BITS = 1 << 15, 1 << 16
Loader = Callable[..., None]


@dataclass(frozen=True)
class Part:
    """One of the merged layers, on one rank of tensor parallelism."""

    name: str
    codebooks: Codebooks
    rows: int
    """Outputs on this rank."""
    columns: int
    """Inputs of the whole layer: how they are split is known when they are in order."""
    first_row: int = 0
    """Of this rank in the checkpoint."""
    rows_are_split: bool = False

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of its tensors on this rank, by the last part of their names."""
        group = QuantGroup(METHOD, vector_args(self.codebooks), format=METHOD)
        tensors = FORMAT.tensors(group, self.rows, self.columns)
        return {name: tensor.shapes[0] for name, tensor in tensors.items()}

    def dtype(self, suffix: str, floats: torch.dtype) -> torch.dtype:
        group = QuantGroup(METHOD, vector_args(self.codebooks), format=METHOD)
        stored = FORMAT.tensors(group, self.rows, self.columns)[suffix]
        return TYPES.get(stored.dtypes[0], floats)

    def own(self, suffix: str, stored: torch.Tensor) -> torch.Tensor:
        """What this rank takes of a stored tensor: some of the vectors, all of everything else."""
        if not self.rows_are_split or suffix not in (INDICES, OUTLIER_INDICES):
            return stored
        books = self.codebooks
        length = books.vector_length if suffix == INDICES else books.outlier_vector_length
        return stored.narrow(1, self.first_row // length, self.rows // length)


class StoredTensors:
    """The parameters of a layer, by name, and which of their parts were loaded."""

    def __init__(self, prefix: str, parts: Sequence[Part], floats: torch.dtype) -> None:
        self.prefix, self.parts = prefix, list(parts)
        self.shapes = [part.shapes() for part in parts]
        self.loaded: set[tuple[str, int]] = set()
        self.parameters: dict[str, torch.nn.Parameter] = {}
        for suffix in dict.fromkeys(name for shapes in self.shapes for name in shapes):
            owners = [
                part for part, shapes in zip(parts, self.shapes, strict=True) if suffix in shapes
            ]
            shapes = [of_part[suffix] for of_part in self.shapes if suffix in of_part]
            size = sum(math.prod(shape) for shape in shapes)
            whole = (len(shapes), *shapes[0]) if len(set(shapes)) == 1 else (1, size)
            empty = torch.empty(whole, dtype=owners[0].dtype(suffix, floats))
            parameter: Any = torch.nn.Parameter(empty, requires_grad=False)
            parameter.weight_loader = self._loader(suffix)
            self.parameters[suffix] = parameter

    def add_to(self, layer: torch.nn.Module) -> None:
        """Registers the parameters under the names of a checkpoint."""
        for suffix, parameter in self.parameters.items():
            owner, _, last = suffix.rpartition(".")
            if owner:
                layer.add_module(owner, torch.nn.Module())
            layer.get_submodule(owner).register_parameter(last, parameter)

    def view(self, suffix: str, number: int) -> torch.Tensor:
        """The place of a part's tensor in its parameter."""
        before = [shapes[suffix] for shapes in self.shapes[:number] if suffix in shapes]
        first, shape = sum(math.prod(one) for one in before), self.shapes[number][suffix]
        flat = self.parameters[suffix].data.view(-1)
        return flat[first : first + math.prod(shape)].view(shape)

    def layers(self) -> list[VectorLayer]:
        """The parts with their tensors."""
        return [
            VectorLayer(
                part.codebooks, part.rows, part.columns,
                {suffix: self.view(suffix, number) for suffix in self.shapes[number]},
            )
            for number, part in enumerate(self.parts)
        ]  # fmt: skip

    def missing(self) -> list[str]:
        """Tensors that the checkpoint did not have."""
        return [
            f"{self.parts[number].name}.{suffix}"
            for number, shapes in enumerate(self.shapes)
            for suffix in shapes
            if (suffix, number) not in self.loaded
        ]

    def empty(self) -> None:
        """Gives the memory back."""
        for parameter in self.parameters.values():
            parameter.data = parameter.data.new_empty(0)

    def _loader(self, suffix: str) -> Loader:
        def weight_loader(
            parameter: torch.nn.Parameter,
            loaded_weight: torch.Tensor,
            loaded_shard_id: str | int | None = None,
        ) -> None:
            self._load(suffix, loaded_weight, loaded_shard_id)

        return weight_loader

    def _load(self, suffix: str, stored: torch.Tensor, shard: str | int | None) -> None:
        number = SHARDS.get(shard, -1) if isinstance(shard, str) else shard or 0
        is_unnamed = shard is None and len(self.parts) > 1
        if is_unnamed or not 0 <= number < len(self.parts):
            raise ValueError(f"{self.prefix}.{suffix}: there is no part {shard!r} of this layer")
        part = self.parts[number]
        if suffix not in self.shapes[number]:
            raise ValueError(f"{part.name}.{suffix}: quantization_config has no such tensor")
        place, values = self.view(suffix, number), part.own(suffix, as_signed(stored))
        if values.shape != place.shape:
            sizes = f"{tuple(values.shape)}, not {tuple(place.shape)}"
            raise ValueError(f"{part.name}.{suffix}: has the shape {sizes} as its config says")
        place.copy_(values)
        self.loaded.add((suffix, number))


def as_signed(stored: torch.Tensor) -> torch.Tensor:
    """Unsigned 16-bit numbers, which some files have as such or as 64-bit ones, in the bits of
    signed ones."""
    if stored.dtype == torch.uint16:
        return stored.view(torch.int16)
    if stored.dtype == torch.int64:
        wrapped = torch.where(stored >= HALF_OF_16_BITS, stored - ALL_OF_16_BITS, stored)
        return wrapped.to(torch.int16)
    return stored
