"""Every tensor that a checkpoint should hold: its shape, its types, and what it is for."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from conf.formats import unquantized
from conf.formats.quant_args import GROUPED, INT, QuantArgs, QuantGroup
from conf.formats.registry import format_of
from conf.formats.stored_format import StoredFormat
from conf.formats.tensors import FLOATS, SCALAR, Role, Shape, StoredTensor, scale_shape
from quantize.checkpoint.verify.schemes import Schemes

ANY_NUMBER = (*FLOATS, "I64", "I32", "U8", "I8", "BOOL", "F64")


@dataclass(frozen=True)
class Linear:
    """One linear layer."""

    name: str
    rows: int
    columns: int
    group: QuantGroup = unquantized.GROUP
    format: StoredFormat = unquantized.FORMAT

    @cached_property
    def tensors(self) -> dict[str, StoredTensor]:
        """What the layer stores, by the last part of the names."""
        return self.format.tensors(self.group, self.rows, self.columns)

    @property
    def is_quantized(self) -> bool:
        return self.format is not unquantized.FORMAT

    @property
    def is_integer(self) -> bool:
        return self.is_quantized and self.weights.type == INT

    @property
    def weights(self) -> QuantArgs:
        assert self.group.weights is not None
        return self.group.weights

    @cached_property
    def codes_part(self) -> str:
        holders = (Role.CODES, Role.WEIGHT)
        return next(part for part, tensor in self.tensors.items() if tensor.role in holders)

    @property
    def stored(self) -> str:
        """The tensor that holds the weights."""
        return f"{self.name}.{self.codes_part}"

    @property
    def broken_group(self) -> bool:
        """Whether its groups do not divide its columns; no engine runs that."""
        if not self.is_quantized or self.weights.strategy not in GROUPED:
            return False
        assert self.weights.group_size is not None
        return bool(self.columns % self.weights.group_size)

    @property
    def scale_shape(self) -> Shape:
        return scale_shape(self.weights, self.rows, self.columns)


@dataclass
class Expectation:
    """The whole checkpoint."""

    tensors: dict[str, StoredTensor] = field(default_factory=dict)
    linear: list[Linear] = field(default_factory=list)
    tied: str | None = None
    """A head that may be left out, because it is the embedding."""
    embedding: str | None = None


def expect(model: Any, schemes: Schemes) -> Expectation:
    """What the architecture and the config's schemes ask for."""
    whole = Expectation()
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            layer = _layer(name, module, schemes.linear.get(name))
            whole.linear.append(layer)
            whole.tensors |= {f"{name}.{part}": tensor for part, tensor in layer.tensors.items()}
    _parameters(whole, model)
    _tie(whole, model)
    for name in schemes.attention:
        _attention(whole, name, model.config, schemes.attention_heads)
    return whole


def _layer(name: str, module: torch.nn.Linear, group: QuantGroup | None) -> Linear:
    rows, columns = module.out_features, module.in_features
    stored = format_of(group) if group is not None else None
    if group is None or stored is None:
        return Linear(name, rows, columns)
    return Linear(name, rows, columns, group, stored)


def _parameters(whole: Expectation, model: Any) -> None:
    """Everything that is no linear weight, with the shape that the architecture gives it."""
    linear = {layer.name for layer in whole.linear}
    for owner, module in model.named_modules():
        for part, parameter in module.named_parameters(recurse=False):
            name = f"{owner}.{part}" if owner else part
            if owner in linear and part == "weight":
                continue
            role = _role(module, part, parameter)
            if role is Role.EMBEDDING and whole.embedding is None:
                whole.embedding = name
            whole.tensors[name] = StoredTensor(role, (tuple(parameter.shape),), FLOATS)
    stored = model.state_dict().keys()
    for name, buffer in model.named_buffers():
        if name in stored:
            whole.tensors[name] = StoredTensor(
                Role.OTHER, (tuple(buffer.shape),), ANY_NUMBER, False
            )


def _role(module: Any, part: str, parameter: torch.Tensor) -> Role:
    if isinstance(module, torch.nn.Embedding):
        return Role.EMBEDDING
    if part == "bias":
        return Role.BIAS
    if parameter.ndim == 1 and "norm" in type(module).__name__.lower():
        return Role.NORM
    return Role.OTHER


def _tie(whole: Expectation, model: Any) -> None:
    """A tied head need not be stored."""
    head = model.get_output_embeddings()
    name = next((name for name, module in model.named_modules() if module is head), None)
    if head is None or name is None or not getattr(model.config, "tie_word_embeddings", False):
        return
    weight = f"{name}.weight"
    if weight in whole.tensors and whole.tensors[weight].role is Role.WEIGHT:
        whole.tied = weight


def _attention(whole: Expectation, name: str, config: Any, heads: bool) -> None:
    shapes = SCALAR
    if heads:
        count = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        shapes = ((count, 1, 1), (count,))
    for part in ("k_scale", "v_scale"):
        whole.tensors[f"{name}.{part}"] = StoredTensor(Role.ACTIVATION_SCALE, shapes, FLOATS)
    whole.tensors[f"{name}.q_scale"] = StoredTensor(
        Role.ACTIVATION_SCALE, SCALAR, FLOATS, required=False
    )
