"""Every tensor that a checkpoint should hold: its shape, its types, and what it is for."""

import math
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import torch
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

from quantize.checkpoint.verify.schemes import MXFP4, MXFP8, NVFP4, PACKED, Schemes, plain

FLOATS = ("BF16", "F16", "F32")
WORDS = ("I32",)
WHOLE = ("I64", "I32")
ANY_NUMBER = (*FLOATS, "I64", "I32", "U8", "I8", "BOOL", "F64")
Shape = tuple[int, ...]


class Role(Enum):
    """What a tensor is for, which decides how its values are checked."""

    WEIGHT = auto()
    EMBEDDING = auto()
    NORM = auto()
    BIAS = auto()
    OTHER = auto()
    CODES = auto()
    SCALE = auto()
    GLOBAL_SCALE = auto()
    ZERO_POINT = auto()
    WEIGHT_SHAPE = auto()
    ACTIVATION_SCALE = auto()


@dataclass(frozen=True)
class Expected:
    """One tensor of the checkpoint."""

    role: Role
    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    required: bool = True


@dataclass(frozen=True)
class Linear:
    """One linear layer."""

    name: str
    rows: int
    columns: int
    scheme: QuantizationScheme | None = None
    """None where it is not quantized."""

    @property
    def weights(self) -> QuantizationArgs:
        assert self.scheme is not None
        return self.scheme.weights

    @property
    def is_packed(self) -> bool:
        return self.scheme is not None and self.scheme.format in (PACKED, NVFP4, MXFP4)

    @property
    def stored(self) -> str:
        """The tensor that holds the weights."""
        return f"{self.name}.{'weight_packed' if self.is_packed else 'weight'}"

    @property
    def broken_group(self) -> bool:
        """Whether its groups do not divide its columns; no engine runs that."""
        if self.scheme is None or plain(self.weights.strategy) not in ("group", "tensor_group"):
            return False
        return bool(self.columns % self.weights.group_size)

    @property
    def scale_shape(self) -> Shape:
        return _scale_shape(self.weights, self.rows, self.columns)


@dataclass
class Expectation:
    """The whole checkpoint."""

    tensors: dict[str, Expected] = field(default_factory=dict)
    linear: list[Linear] = field(default_factory=list)
    tied: str | None = None
    """A head that may be left out, because it is the embedding."""
    embedding: str | None = None


def expect(model: Any, schemes: Schemes) -> Expectation:
    """What the architecture and the config's schemes ask for."""
    whole = Expectation()
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            scheme = schemes.linear.get(name)
            usable = scheme is not None and scheme.weights is not None
            layer = Linear(
                name, module.out_features, module.in_features, scheme if usable else None
            )
            whole.linear.append(layer)
            whole.tensors |= _linear(layer)
    _parameters(whole, model)
    _tie(whole, model)
    for name in schemes.attention:
        _attention(whole, name, model.config, schemes.attention_heads)
    return whole


def _linear(layer: Linear) -> dict[str, Expected]:
    if layer.scheme is None:
        shape = (layer.rows, layer.columns)
        return {layer.stored: Expected(Role.WEIGHT, (shape,), FLOATS)}
    weights, name = layer.weights, layer.name
    found = {layer.stored: _codes(layer)}
    scales = _shapes(layer.scale_shape)
    form = layer.scheme.format
    scale_types = {NVFP4: ("F8_E4M3",), MXFP4: ("U8", "F8_E8M0"), MXFP8: ("U8", "F8_E8M0")}
    found[f"{name}.weight_scale"] = Expected(Role.SCALE, scales, scale_types.get(form, FLOATS))
    if form == PACKED:
        found[f"{name}.weight_shape"] = Expected(Role.WEIGHT_SHAPE, ((2,),), WHOLE)
    if plain(weights.strategy) == "tensor_group":
        found[f"{name}.weight_global_scale"] = Expected(Role.GLOBAL_SCALE, ((1,), ()), ("F32",))
    zero = f"{name}.weight_zero_point"
    if not weights.symmetric and form == PACKED and plain(weights.strategy) in ("group", "channel"):
        rows, groups = layer.scale_shape
        height = math.ceil(rows * weights.num_bits / 32)
        found[zero] = Expected(Role.ZERO_POINT, ((height, groups),), WORDS)
    elif plain(weights.type) == "int":
        # Older exports keep the zeros of symmetric formats.
        found[zero] = Expected(Role.ZERO_POINT, scales, ("I8",), not weights.symmetric)
    return found | _inputs(name, layer.scheme.input_activations)


def _codes(layer: Linear) -> Expected:
    weights = layer.weights
    if layer.scheme is not None and layer.scheme.format == PACKED:
        width = math.ceil(layer.columns * weights.num_bits / 32)
        return Expected(Role.CODES, ((layer.rows, width),), WORDS)
    if layer.is_packed:
        return Expected(Role.CODES, ((layer.rows, math.ceil(layer.columns / 2)),), ("U8",))
    kind = "I8" if plain(weights.type) == "int" else "F8_E4M3"
    return Expected(Role.CODES, ((layer.rows, layer.columns),), (kind,))


def _inputs(name: str, inputs: QuantizationArgs | None) -> dict[str, Expected]:
    """Scales of activations, where they were calibrated."""
    if inputs is None or inputs.dynamic is True:
        return {}
    found = {}
    if plain(inputs.strategy) == "tensor_group":
        found[f"{name}.input_global_scale"] = Expected(Role.GLOBAL_SCALE, ((1,), ()), ("F32",))
    if inputs.dynamic is False:
        found[f"{name}.input_scale"] = Expected(Role.ACTIVATION_SCALE, ((1,), ()), FLOATS)
        found[f"{name}.input_zero_point"] = Expected(
            Role.ZERO_POINT, ((1,), ()), ("I8",), not inputs.symmetric
        )
    return found


def _scale_shape(weights: QuantizationArgs, rows: int, columns: int) -> Shape:
    strategy = plain(weights.strategy)
    if strategy == "channel":
        return (rows, 1)
    if strategy in ("group", "tensor_group"):
        return (rows, math.ceil(columns / weights.group_size))
    if strategy == "block":
        height, width = weights.block_structure
        return (math.ceil(rows / height), math.ceil(columns / width))
    return (1,)


def _shapes(shape: Shape) -> tuple[Shape, ...]:
    """A single scale may be stored with one dimension, two or none."""
    return ((1,), (), (1, 1)) if shape == (1,) else (shape,)


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
            whole.tensors[name] = Expected(role, (tuple(parameter.shape),), FLOATS)
    stored = model.state_dict().keys()
    for name, buffer in model.named_buffers():
        if name in stored:
            whole.tensors[name] = Expected(Role.OTHER, (tuple(buffer.shape),), ANY_NUMBER, False)


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
    shapes: tuple[Shape, ...] = ((1,), ())
    if heads:
        count = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        shapes = ((count, 1, 1), (count,))
    for part in ("k_scale", "v_scale"):
        whole.tensors[f"{name}.{part}"] = Expected(Role.ACTIVATION_SCALE, shapes, FLOATS)
    whole.tensors[f"{name}.q_scale"] = Expected(
        Role.ACTIVATION_SCALE, ((1,), ()), FLOATS, required=False
    )
