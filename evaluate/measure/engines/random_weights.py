"""Weights that are spread as a trained model's are, in whatever format an engine holds them.

Their values matter: zeros take less power, and a GPU at its power limit multiplies them faster
than any model's weights. vLLM's own made-up weights leave whole numbers as memory had them, which
is mostly zeros, and are so small that FP8 rounds them to zeros.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from conf.formats.quant_args import QuantizationConfig

SEED = 1
SIGMA = 0.02  # of a trained model's weights, about
INPUT_SCALE = 0.05  # of activations with a deviation of 1, whose largest are rounded to 127
INPUT_GLOBAL_SCALE = 500.0  # the same for FP4, whose scales are FP8 and turned upside down
FP4_WIDTH = 3.0  # deviation of the numbers that FP4 has, all alike
WORD = 32  # bits
BIAS = 127  # of an exponent that is a scale
MOST_AT_ONCE = 1 << 24  # weights that are made at a time: they take twelve bytes each
SCALES = ("_scale", "_scale_inv")
# Two of four that stay.
PAIRS = [(1, 1, 0, 0), (1, 0, 1, 0), (1, 0, 0, 1), (0, 1, 1, 0), (0, 1, 0, 1), (0, 0, 1, 1)]


@dataclass
class WeightSpread:
    """How the weights of a layer are to be."""

    random: torch.Generator
    bits: int = 16
    """Of a packed weight that has no note of its own."""
    sparse: bool = False
    """Two of four neighbours are zero."""
    widest: int = 8
    """Bits of a whole number that is a weight by itself."""


class WeightSpreads:
    """What a described checkpoint's config says of its weights, for one layer after the other."""

    def __init__(self, quantization: QuantizationConfig | None, sparse: bool) -> None:
        groups = quantization.groups if quantization is not None else []
        widths = [group.weights.bits for group in groups if group.weights is not None]
        self.bits = next(iter(widths), 16)
        self.widest = max([bits for bits in widths if bits <= 8], default=8)
        self.sparse = sparse
        self.random: dict[torch.device, torch.Generator] = {}

    def of(self, tensors: dict[str, torch.Tensor], is_linear: bool) -> WeightSpread:
        """For a layer; its tensors lie on one device."""
        device = next((tensor.device for tensor in tensors.values()), torch.device("cpu"))
        if device not in self.random:
            self.random[device] = torch.Generator(device).manual_seed(SEED)
        return WeightSpread(self.random[device], self.bits, self.sparse and is_linear, self.widest)


def fill(tensors: dict[str, torch.Tensor], spread: WeightSpread) -> None:
    """Fills the tensors of one layer, by their names and types. Whole numbers that are no weights
    (indices, shapes) and the cache's scales stay as they are."""
    for name, tensor in tensors.items():
        scale = _scale_of(name, tensors)
        if (value := getattr(tensor, "dummy_weight_value", None)) is not None:
            tensor.fill_(value)
        elif scale is not None:
            width = _fill_codes(tensor, scale, spread)
            whole = tensors.get(f"{name.removesuffix('_packed')}_global_scale")
            _fill_scale(scale, whole, width)
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


def _scale_of(name: str, tensors: dict[str, torch.Tensor]) -> torch.Tensor | None:
    scales = (tensors.get(name.removesuffix("_packed") + suffix) for suffix in SCALES)
    return next((scale for scale in scales if scale is not None), None)


def _fill_plain(tensor: torch.Tensor, spread: WeightSpread) -> None:
    """A layer that a recipe leaves alone is not pruned either."""
    for part in _parts(tensor):
        part.normal_(0.0, SIGMA, generator=spread.random)
        if spread.sparse and spread.bits == 16 and tensor.dim() > 1:
            _prune(part, spread.random)


def _fill_codes(tensor: torch.Tensor, scale: torch.Tensor, spread: WeightSpread) -> float:
    """Quantized weights, as many steps wide as those that share a scale are; that width."""
    if tensor.dtype == torch.uint8:  # two FP4 numbers in each
        tensor.random_(0, 256, generator=spread.random)
        return FP4_WIDTH
    packed = _packed(tensor, spread.bits)
    bits = WORD // packed if packed > 1 else spread.widest
    is_float = tensor.is_floating_point()
    most: float = torch.finfo(tensor.dtype).max if is_float else 2 ** (bits - 1) - 1
    # The largest of n normal numbers lies at about this many deviations; the scale makes it `most`.
    width = most / math.sqrt(2 * math.log(max(2, tensor.numel() * packed / scale.numel())))
    for part in _parts(tensor, packed):
        codes = _normal(part, packed, spread.random).mul_(width)
        if spread.sparse:
            _prune(codes, spread.random)
        codes = codes.clamp_(-most, most) if is_float else codes.round_().clamp_(-most - 1, most)
        part.copy_(_pack(codes, bits) if packed > 1 else codes)
    return width


def _fill_scale(scale: torch.Tensor, whole: torch.Tensor | None, width: float) -> None:
    """What makes codes of that width as wide as weights are."""
    if whole is not None:
        scale.fill_(1.0)
        whole.fill_(width / SIGMA)
    elif scale.is_floating_point():
        scale.fill_(SIGMA / width)
    else:
        scale.fill_(BIAS + round(math.log2(SIGMA / width)))


def _fill_zero_points(tensor: torch.Tensor, spread: WeightSpread) -> None:
    """Near the middle where they are packed; those of activations are zero."""
    packed = _packed(tensor, spread.bits)
    if packed == 1:
        tensor.zero_()
    else:
        bits = WORD // packed
        most = 2 ** (bits - 1)
        codes = _normal(tensor, packed, spread.random).round_().clamp_(-most, most - 1)
        tensor.copy_(_pack(codes, bits))


def _packed(tensor: torch.Tensor, bits: int) -> int:
    """Weights in a word, which vLLM notes for all layers but experts."""
    return int(getattr(tensor, "packed_factor", WORD // bits)) if tensor.dtype == torch.int32 else 1


def _parts(tensor: torch.Tensor, packed: int = 1) -> Iterator[torch.Tensor]:
    """The rows of a tensor, some at a time."""
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
    """Whole numbers around zero, counted from the lowest, side by side in words."""
    counted = codes.to(torch.int32).add_(2 ** (bits - 1))
    words = torch.zeros(codes.shape[:-1], dtype=torch.int32, device=codes.device)
    for place in range(codes.shape[-1]):
        words |= counted[..., place] << (place * bits)
    return words
