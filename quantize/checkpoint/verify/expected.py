"""Every tensor that a checkpoint should hold: its shape, its types and its role."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from conf.formats import unquantized
from conf.formats.base.stored_format import StoredFormat
from conf.formats.base.tensors import FLOATS, SCALAR, Role, Shape, StoredTensor, scale_shape
from conf.formats.quant_args import GROUPED, INT, QuantArgs, QuantGroup
from conf.formats.registry import format_of
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
        """The layer's tensors by the last part of their names."""
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
    def codes_suffix(self) -> str:
        holders = (Role.CODES, Role.WEIGHT)
        return next(suffix for suffix, tensor in self.tensors.items() if tensor.role in holders)

    @property
    def stored(self) -> str:
        """The name of the tensor that holds the weights or codes."""
        return f"{self.name}.{self.codes_suffix}"

    @property
    def broken_group(self) -> bool:
        """Whether the group size does not divide the columns; no engine runs such a layer."""
        if not self.is_quantized or self.weights.strategy not in GROUPED:
            return False
        assert self.weights.group_size is not None
        return bool(self.columns % self.weights.group_size)

    @property
    def scale_shape(self) -> Shape:
        return scale_shape(self.weights, self.rows, self.columns)


@dataclass
class Expectation:
    """The expected content of a checkpoint."""

    tensors: dict[str, StoredTensor] = field(default_factory=dict)
    linear: list[Linear] = field(default_factory=list)
    tied: str | None = None
    """The weight of a head that may be missing, because it is tied to the embedding."""
    embedding: str | None = None


def expect(model: Any, schemes: Schemes) -> Expectation:
    """The tensors that the architecture and the config's schemes require."""
    expectation = Expectation()
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            layer = _layer(name, module, schemes.linear.get(name))
            expectation.linear.append(layer)
            expectation.tensors |= {
                f"{name}.{suffix}": tensor for suffix, tensor in layer.tensors.items()
            }
    _add_parameters(expectation, model)
    _mark_tied_head(expectation, model)
    for name in schemes.attention:
        _add_attention_scales(expectation, name, model.config, schemes.attention_heads)
    return expectation


def _layer(name: str, module: torch.nn.Linear, group: QuantGroup | None) -> Linear:
    rows, columns = module.out_features, module.in_features
    stored = format_of(group) if group is not None else None
    if group is None or stored is None:
        return Linear(name, rows, columns)
    return Linear(name, rows, columns, group, stored)


def _add_parameters(expectation: Expectation, model: Any) -> None:
    """Adds all other parameters and buffers, with the shapes of the architecture."""
    linear = {layer.name for layer in expectation.linear}
    for owner, module in model.named_modules():
        for suffix, parameter in module.named_parameters(recurse=False):
            name = f"{owner}.{suffix}" if owner else suffix
            if owner in linear and suffix == "weight":
                continue
            role = _role(module, suffix, parameter)
            if role is Role.EMBEDDING and expectation.embedding is None:
                expectation.embedding = name
            expectation.tensors[name] = StoredTensor(role, (tuple(parameter.shape),), FLOATS)
    stored = model.state_dict().keys()
    for name, buffer in model.named_buffers():
        if name in stored:
            expectation.tensors[name] = StoredTensor(
                Role.OTHER, (tuple(buffer.shape),), ANY_NUMBER, False
            )


def _role(module: Any, suffix: str, parameter: torch.Tensor) -> Role:
    if isinstance(module, torch.nn.Embedding):
        return Role.EMBEDDING
    if suffix == "bias":
        return Role.BIAS
    if parameter.ndim == 1 and "norm" in type(module).__name__.lower():
        return Role.NORM
    return Role.OTHER


def _mark_tied_head(expectation: Expectation, model: Any) -> None:
    """Marks a tied head, which need not be stored."""
    head = model.get_output_embeddings()
    name = next((name for name, module in model.named_modules() if module is head), None)
    if head is None or name is None or not getattr(model.config, "tie_word_embeddings", False):
        return
    weight = f"{name}.weight"
    if weight in expectation.tensors and expectation.tensors[weight].role is Role.WEIGHT:
        expectation.tied = weight


def _add_attention_scales(expectation: Expectation, name: str, config: Any, per_head: bool) -> None:
    shapes = SCALAR
    if per_head:
        count = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        shapes = ((count, 1, 1), (count,))
    for suffix in ("k_scale", "v_scale"):
        expectation.tensors[f"{name}.{suffix}"] = StoredTensor(
            Role.ACTIVATION_SCALE, shapes, FLOATS
        )
    expectation.tensors[f"{name}.q_scale"] = StoredTensor(
        Role.ACTIVATION_SCALE, SCALAR, FLOATS, required=False
    )
