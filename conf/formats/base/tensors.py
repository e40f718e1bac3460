"""The tensors that quantized linear layers store, as far as formats share them."""

import math
from dataclasses import dataclass
from enum import Enum, auto

from conf.formats.quant_args import DYNAMIC, GROUPED, STATIC, QuantArgs, QuantGroup

Shape = tuple[int, ...]
FLOATS = ("BF16", "F16", "F32")
WORD = 32  # bits of the integers that narrow weights are packed into
# How compressed-tensors spells the two layouts that several formats have.
PACK_QUANTIZED, NAIVE_QUANTIZED = "pack-quantized", "naive-quantized"
SCALAR: tuple[Shape, ...] = ((1,), ())
# How the numbers of a tensor are encoded. Code that reads values selects a decoder by this name.
NUMBERS = "numbers"
PACKED_INTEGERS = "packed integers"
FP4_PAIRS = "pairs of FP4 numbers"
EXPONENTS = "exponents of two"
VECTOR_INDICES = "numbers of codebook entries"


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
    CODEBOOK = auto()
    COLUMN_SCALE = auto()
    COLUMN_ORDER = auto()


@dataclass(frozen=True)
class StoredTensor:
    """A tensor that a checkpoint should hold."""

    role: Role
    shapes: tuple[Shape, ...]
    """Any of these."""
    dtypes: tuple[str, ...]
    """Any of these, as safetensors spells them."""
    required: bool = True
    encoding: str = NUMBERS


def codes(dtype: str, rows: int, columns: int) -> StoredTensor:
    """One element per weight."""
    return StoredTensor(Role.CODES, ((rows, columns),), (dtype,))


def packed_integers(bits: int, rows: int, columns: int) -> StoredTensor:
    """Integers side by side in words, row by row."""
    shape = (rows, math.ceil(columns * bits / WORD))
    return StoredTensor(Role.CODES, (shape,), ("I32",), encoding=PACKED_INTEGERS)


def fp4_pairs(rows: int, columns: int) -> StoredTensor:
    """Two FP4 numbers in a byte."""
    shape = (rows, math.ceil(columns / 2))
    return StoredTensor(Role.CODES, (shape,), ("U8",), encoding=FP4_PAIRS)


def scales(weights: QuantArgs, rows: int, columns: int) -> StoredTensor:
    """Scales in a number type of the model's own."""
    return StoredTensor(Role.SCALE, scale_shapes(weights, rows, columns), FLOATS)


def global_scale() -> StoredTensor:
    """The scale of the group scales."""
    return StoredTensor(Role.GLOBAL_SCALE, SCALAR, ("F32",))


def scale_shape(weights: QuantArgs, rows: int, columns: int) -> Shape:
    if weights.strategy == "channel":
        return (rows, 1)
    if weights.strategy in GROUPED:
        assert weights.group_size is not None
        return (rows, math.ceil(columns / weights.group_size))
    if weights.strategy == "block":
        assert weights.block_structure is not None
        height, width = weights.block_structure
        return (math.ceil(rows / height), math.ceil(columns / width))
    return (1,)


def scale_shapes(weights: QuantArgs, rows: int, columns: int) -> tuple[Shape, ...]:
    """A single scale may be stored with one dimension, two or none."""
    shape = scale_shape(weights, rows, columns)
    return ((1,), (), (1, 1)) if shape == (1,) else (shape,)


def zero_points(group: QuantGroup, rows: int, columns: int, is_packed: bool) -> StoredTensor:
    """Zero points of int weights. Older exports store the zeros of symmetric formats, too."""
    weights = group.weights
    assert weights is not None
    if is_packed and not weights.symmetric and weights.strategy in ("group", "channel"):
        height, groups = scale_shape(weights, rows, columns)
        shape = (math.ceil(height * weights.bits / WORD), groups)
        return StoredTensor(Role.ZERO_POINT, (shape,), ("I32",), encoding=PACKED_INTEGERS)
    shapes = scale_shapes(weights, rows, columns)
    return StoredTensor(Role.ZERO_POINT, shapes, ("I8",), required=not weights.symmetric)


def activation_tensors(activations: QuantArgs | None) -> dict[str, StoredTensor]:
    """Scales of activations, where they were calibrated."""
    if activations is None or activations.scales == DYNAMIC:
        return {}
    tensors = {}
    if activations.strategy == "tensor_group":
        tensors["input_global_scale"] = global_scale()
    if activations.scales == STATIC:
        required = not activations.symmetric
        tensors["input_scale"] = StoredTensor(Role.ACTIVATION_SCALE, SCALAR, FLOATS)
        tensors["input_zero_point"] = StoredTensor(Role.ZERO_POINT, SCALAR, ("I8",), required)
    return tensors


def integer_tensors(group: QuantGroup, rows: int, columns: int) -> dict[str, StoredTensor]:
    """The tensors of a layer of int weights, packed if the config's format is packed."""
    weights = group.weights
    assert weights is not None
    is_packed = group.format == PACK_QUANTIZED
    tensors = {}
    if is_packed:
        tensors["weight_packed"] = packed_integers(weights.bits, rows, columns)
        tensors["weight_shape"] = StoredTensor(Role.WEIGHT_SHAPE, ((2,),), ("I64", "I32"))
    else:
        tensors["weight"] = codes("I8", rows, columns)
    tensors["weight_scale"] = scales(weights, rows, columns)
    if weights.strategy == "tensor_group":
        tensors["weight_global_scale"] = global_scale()
    tensors["weight_zero_point"] = zero_points(group, rows, columns, is_packed)
    return tensors | activation_tensors(group.activations)
