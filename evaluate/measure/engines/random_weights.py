"""Random weights that are distributed like a trained model's, in the engine's stored format.

Their values matter: zeros take less power, and a GPU at its power limit multiplies them faster
than any model's weights. vLLM's own dummy weights leave integers uninitialized, which is mostly
zeros, and their floats are so small that FP8 rounds them to zero.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from conf.formats import vptq
from conf.formats.quant_args import QuantizationConfig

SEED = 1
SIGMA = 0.02  # approximate standard deviation of a trained model's weights
INPUT_SCALE = 0.05  # for activations with a deviation of 1, whose largest become 127
INPUT_GLOBAL_SCALE = 500.0  # the same for FP4, whose scales are FP8 and inverted
FP4_WIDTH = 3.0  # standard deviation of uniformly drawn FP4 codes
WORD = 32  # bits
BIAS = 127  # of a scale that is stored as an exponent
MOST_AT_ONCE = 1 << 24  # weights that are made at a time: they take twelve bytes each
SCALES = ("_scale", "_scale_inv")
# Which two of four neighbours are not zero.
PAIRS = [(1, 1, 0, 0), (1, 0, 1, 0), (1, 0, 0, 1), (0, 1, 1, 0), (0, 1, 0, 1), (0, 0, 1, 1)]


@dataclass
class WeightSpread:
    """The distribution of a layer's weights."""

    random: torch.Generator
    bits: int = 16
    """Bits of a packed weight without a `packed_factor`."""
    sparse: bool = False
    """Two of four neighbours are zero."""
    widest: int = 8
    """Bits of an integer that holds a single weight."""


class WeightSpreads:
    """Weight distributions for the layers of a described checkpoint, from its config."""

    def __init__(self, quantization: QuantizationConfig | None, sparse: bool) -> None:
        groups = quantization.groups if quantization is not None else []
        widths = [group.weights.bits for group in groups if group.weights is not None]
        self.bits = next(iter(widths), 16)
        self.widest = max([bits for bits in widths if bits <= 8], default=8)
        self.sparse = sparse
        self.random: dict[torch.device, torch.Generator] = {}

    def of(self, tensors: dict[str, torch.Tensor], is_linear: bool) -> WeightSpread:
        """The distribution for a layer, whose tensors are on one device."""
        device = next((tensor.device for tensor in tensors.values()), torch.device("cpu"))
        if device not in self.random:
            self.random[device] = torch.Generator(device).manual_seed(SEED)
        return WeightSpread(self.random[device], self.bits, self.sparse and is_linear, self.widest)


def fill(tensors: dict[str, torch.Tensor], spread: WeightSpread) -> None:
    """Fills the tensors of one layer, by their names and types. Integers that are not weights
    (indices, shapes) and the cache's scales are left unchanged."""
    if vptq.INDICES in tensors:
        _fill_vectors(tensors, spread)
        return
    for name, tensor in tensors.items():
        scale = _scale_of(name, tensors)
        if (value := getattr(tensor, "dummy_weight_value", None)) is not None:
            tensor.fill_(value)
        elif scale is not None:
            width = _fill_codes(tensor, scale, spread)
            global_scale = tensors.get(f"{name.removesuffix('_packed')}_global_scale")
            _fill_scale(scale, global_scale, width)
        elif name.endswith("zero_point"):
            _fill_zero_points(tensor, spread)
        elif name.endswith("input_scale"):
            tensor.fill_(INPUT_SCALE)
        elif name.endswith("input_global_scale"):
            tensor.fill_(INPUT_GLOBAL_SCALE)
        elif name == "weight" and tensor.dim() == 1:  # a norm's
            tensor.fill_(1.0)
        elif tensor.is_floating_point() and not name.endswith(("_shape", *SCALES)):
            _fill_plain(tensor, spread)


def _fill_vectors(tensors: dict[str, torch.Tensor], spread: WeightSpread) -> None:
    """Fills a layer in codebooks: every number names an entry, and entries are plain weights."""
    for name, tensor in tensors.items():
        if name == vptq.INDICES:
            tensor.random_(-(1 << (WORD - 1)), 1 << (WORD - 1), generator=spread.random)
        elif name == vptq.ORDER:
            tensor.copy_(torch.arange(tensor.shape[-1], device=tensor.device))
        elif name == vptq.SCALE:
            tensor.fill_(1.0)
        elif name == vptq.OFFSET:
            tensor.zero_()
        elif tensor.is_floating_point() and tensor.dim() > 1:
            _fill_plain(tensor, spread)
        else:
            tensor.zero_()


def _scale_of(name: str, tensors: dict[str, torch.Tensor]) -> torch.Tensor | None:
    scales = (tensors.get(name.removesuffix("_packed") + suffix) for suffix in SCALES)
    return next((scale for scale in scales if scale is not None), None)


def _fill_plain(tensor: torch.Tensor, spread: WeightSpread) -> None:
    """Fills a weight that is not quantized. A layer that a recipe ignores is not pruned."""
    for rows in _row_chunks(tensor):
        rows.normal_(0.0, SIGMA, generator=spread.random)
        if spread.sparse and spread.bits == 16 and tensor.dim() > 1:
            _prune(rows, spread.random)


def _fill_codes(tensor: torch.Tensor, scale: torch.Tensor, spread: WeightSpread) -> float:
    """Fills quantized weights and returns their standard deviation in quantization steps."""
    if tensor.dtype == torch.uint8:  # two FP4 numbers in each
        tensor.random_(0, 256, generator=spread.random)
        return FP4_WIDTH
    packed = _packed(tensor, spread.bits)
    bits = WORD // packed if packed > 1 else spread.widest
    is_float = tensor.is_floating_point()
    largest_code: float = torch.finfo(tensor.dtype).max if is_float else 2 ** (bits - 1) - 1
    # The largest of n normal numbers is at about this many deviations; it gets the largest code.
    width = largest_code / math.sqrt(2 * math.log(max(2, tensor.numel() * packed / scale.numel())))
    for rows in _row_chunks(tensor, packed):
        codes = _normal(rows, packed, spread.random).mul_(width)
        if spread.sparse:
            _prune(codes, spread.random)
        codes = (
            codes.clamp_(-largest_code, largest_code)
            if is_float
            else codes.round_().clamp_(-largest_code - 1, largest_code)
        )
        rows.copy_(_pack(codes, bits) if packed > 1 else codes)
    return width


def _fill_scale(scale: torch.Tensor, global_scale: torch.Tensor | None, width: float) -> None:
    """Sets the scale so that codes of that standard deviation give weights of SIGMA."""
    if global_scale is not None:
        scale.fill_(1.0)
        global_scale.fill_(width / SIGMA)
    elif scale.is_floating_point():
        scale.fill_(SIGMA / width)
    else:
        scale.fill_(BIAS + round(math.log2(SIGMA / width)))


def _fill_zero_points(tensor: torch.Tensor, spread: WeightSpread) -> None:
    """Fills packed zero points with values near the middle; those of activations are zero."""
    packed = _packed(tensor, spread.bits)
    if packed == 1:
        tensor.zero_()
    else:
        bits = WORD // packed
        half_range = 2 ** (bits - 1)
        codes = _normal(tensor, packed, spread.random).round_().clamp_(-half_range, half_range - 1)
        tensor.copy_(_pack(codes, bits))


def _packed(tensor: torch.Tensor, bits: int) -> int:
    """The number of weights in a word. vLLM sets `packed_factor` for all layers but experts."""
    return int(getattr(tensor, "packed_factor", WORD // bits)) if tensor.dtype == torch.int32 else 1


def _row_chunks(tensor: torch.Tensor, packed: int = 1) -> Iterator[torch.Tensor]:
    """The rows of a tensor, in chunks of limited size."""
    if not tensor.numel():
        return
    rows = tensor.view(-1, tensor.shape[-1] if tensor.dim() else 1)
    yield from rows.split(max(1, MOST_AT_ONCE // (rows.shape[1] * packed)))


def _normal(tensor: torch.Tensor, packed: int, random: torch.Generator) -> torch.Tensor:
    shape = (*tensor.shape, packed) if packed > 1 else tensor.shape
    return torch.randn(shape, generator=random, device=tensor.device, dtype=torch.float32)


def _prune(values: torch.Tensor, random: torch.Generator) -> None:
    """Sets two of every four neighbours to zero."""
    fours = values.view(-1, 4)
    chosen = torch.randint(len(PAIRS), (len(fours),), generator=random, device=values.device)
    fours *= torch.tensor(PAIRS, device=values.device, dtype=values.dtype)[chosen]


def _pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Packs signed codes into words, as unsigned numbers that start at the lowest code."""
    unsigned_codes = codes.to(torch.int32).add_(2 ** (bits - 1))
    packed_words = torch.zeros(codes.shape[:-1], dtype=torch.int32, device=codes.device)
    for place in range(codes.shape[-1]):
        packed_words |= unsigned_codes[..., place] << (place * bits)
    return packed_words
