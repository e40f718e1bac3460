"""Weights that are spread as a trained model's are, in whatever format an engine holds them.

Their values matter: zeros take less power, and a GPU at its power limit multiplies them faster
than any model's weights. vLLM's own made-up weights leave whole numbers as memory had them, which
is mostly zeros, and are so small that FP8 rounds them to zeros.
"""

import math
from collections.abc import Iterator

import torch

SIGMA = 0.02  # of a trained model's weights, about
INPUT_SCALE = 0.05  # of activations with a deviation of 1, whose largest are rounded to 127
FP4_WIDTH = 3.0  # deviation of the numbers that FP4 has, all alike
WORD = 32  # bits
MOST_AT_ONCE = 1 << 25  # weights that are made at a time: they take eight bytes each
# Two of four that stay.
PAIRS = [(1, 1, 0, 0), (1, 0, 1, 0), (1, 0, 0, 1), (0, 1, 1, 0), (0, 1, 0, 1), (0, 0, 1, 1)]


def fill(tensors: dict[str, torch.Tensor], sparse: bool, random: torch.Generator) -> None:
    """Fills the tensors of one layer, by their names and types; `sparse`: two of four are zero.
    Whole numbers that are no weights (indices, shapes) and the cache's scales stay as they are."""
    for name, tensor in tensors.items():
        scale = tensors.get(_scale_of(name))
        if (value := getattr(tensor, "dummy_weight_value", None)) is not None:
            tensor.fill_(value)
        elif scale is not None:
            width = _fill_codes(tensor, scale, sparse, random)
            _fill_scale(scale, tensors.get(_scale_of(name, "_global")), width)
        elif name.endswith("zero_point"):
            _fill_zero_points(tensor, random)
        elif name.endswith("input_scale"):
            tensor.fill_(INPUT_SCALE)
        elif name == "weight" and tensor.dim() == 1:  # a norm's
            tensor.fill_(1.0)
        elif tensor.is_floating_point() and not name.endswith("_scale"):
            _fill_plain(tensor, sparse, random)


def _scale_of(name: str, which: str = "") -> str:
    return f"{name.removesuffix('_packed')}{which}_scale"


def _fill_plain(tensor: torch.Tensor, sparse: bool, random: torch.Generator) -> None:
    for part in _parts(tensor):
        part.normal_(0.0, SIGMA, generator=random)
        if sparse and part.dim() > 1:
            _prune(part, random)


def _fill_codes(
    tensor: torch.Tensor, scale: torch.Tensor, sparse: bool, random: torch.Generator
) -> float:
    """Quantized weights, as many steps wide as those that share a scale are; that width."""
    if tensor.dtype == torch.uint8:  # two FP4 numbers in each
        tensor.random_(0, 256, generator=random)
        return FP4_WIDTH
    packed = _packed(tensor)
    bits = WORD // packed if packed > 1 else 8
    is_float = tensor.is_floating_point()
    most: float = torch.finfo(tensor.dtype).max if is_float else 2 ** (bits - 1) - 1
    # The largest of n normal numbers lies at about this many deviations; the scale makes it `most`.
    width = most / math.sqrt(2 * math.log(max(2, tensor.numel() * packed / scale.numel())))
    for part in _parts(tensor, packed):
        codes = _normal(part, packed, random) * width
        if sparse:
            _prune(codes, random)
        codes = codes.clamp_(-most, most) if is_float else codes.round_().clamp_(-most - 1, most)
        part.copy_(_pack(codes, bits) if packed > 1 else codes)
    return width


def _fill_scale(scale: torch.Tensor, whole: torch.Tensor | None, width: float) -> None:
    """What makes codes of that width as wide as weights are."""
    if whole is None:
        scale.fill_(SIGMA / width)
    else:
        scale.fill_(1.0)
        whole.fill_(width / SIGMA)


def _fill_zero_points(tensor: torch.Tensor, random: torch.Generator) -> None:
    """Near the middle where they are packed; those of activations are zero."""
    packed = _packed(tensor)
    if packed == 1:
        tensor.zero_()
    else:
        codes = _normal(tensor, packed, random).round_()
        tensor.copy_(_pack(codes, WORD // packed))


def _packed(tensor: torch.Tensor) -> int:
    """Weights in a word; vLLM notes it, save for experts, which are mostly in four bits."""
    return int(getattr(tensor, "packed_factor", 8)) if tensor.dtype == torch.int32 else 1


def _parts(tensor: torch.Tensor, packed: int = 1) -> Iterator[torch.Tensor]:
    """The rows of a tensor, some at a time."""
    row = max(1, tensor.numel() * packed // max(1, len(tensor)))
    yield from tensor.split(max(1, MOST_AT_ONCE // row))


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
    places = torch.arange(codes.shape[-1], device=codes.device) * bits
    words = (codes.to(torch.int64) + 2 ** (bits - 1) << places).sum(-1)
    return words.where(words < 2 ** (WORD - 1), words - 2**WORD).to(torch.int32)
