"""The stored numbers of one quantized layer, and whether they fit their scales.

A scale is made from the largest weight that it serves, so the codes of a sound layer use their
range, lie around their zero point, and give weights of a common size. The limits are far from what
trained or random weights show: the aim is damage, not quality.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from conf.formats.quant_args import GROUPED
from conf.formats.tensors import EXPONENTS, FP4_PAIRS, NUMBERS, PACKED_INTEGERS
from quantize.checkpoint.tensors import (
    CheckpointTensors,
    breaks_2_of_4,
    unpack_fp4,
    unpack_integers,
)
from quantize.checkpoint.verify.expected import Linear

ELEMENTS_AT_ONCE = 1 << 24
LEAST_USED = 0.55  # of the codes' range, by the median group; sound layers show 0.66 and more
LEAST_USED_TENSOR = 0.01  # one scale may serve several fused layers
MOST_OFF_CENTRE = 0.1  # of the codes' range, by the median group; sound layers show 0.05
LARGEST_WEIGHT = 1e4
OUTLIER, OUTLIER_FROM = 256, 4.0  # times the median of its tensor, and at least so large
SMALLEST_LAYER = 1e-8  # largest weight of a layer
UNLIKE_OTHERS = 64  # times the weights of the other layers, or as much smaller
SEVERAL = 16  # scales or codes, of which at least two should differ
LARGEST_SCALE, SMALLEST_SCALE = 1e4, 1e-30
SIGNED = (0.1, 0.9)  # share of negative scales, by layer, where all layers have some
MX_BIAS, MX_NAN = 127, 255
SCALE = "weight_scale"


@dataclass
class Groups:
    """What the codes that share a scale have in common, each in the shape of the scales."""

    least: torch.Tensor
    most: torch.Tensor
    mean: torch.Tensor
    is_constant: bool
    rows_are_equal: bool
    broken_masks: int = 0
    """Groups of four that 2:4 does not allow."""


@dataclass
class LayerReport:
    """What is wrong with a layer, and how large its weights are."""

    faults: list[str]
    usual: float = 0.0
    """Median over groups of the largest weight; 0 where it is not known."""


def check_layer(
    tensors: CheckpointTensors, layer: Linear, sparse: bool, signed: bool
) -> LayerReport:
    """Checks a layer whose tensors have the right shapes and types. `sparse`: 2:4 is claimed;
    `signed`: scales may be negative."""
    faults = _shape_faults(tensors, layer)
    scale = _scales(tensors, layer)
    if not torch.isfinite(scale).all():
        return LayerReport([*faults, f"{layer.name}.weight_scale holds NaN or infinite values"])
    faults += _scale_faults(tensors, layer, signed)
    groups = _groups(tensors, layer, sparse)
    if groups is None:
        return LayerReport([*faults, f"{layer.stored} holds NaN or infinite values"])
    if groups.broken_masks:
        faults.append(
            f"{layer.stored}: {groups.broken_masks} groups of four have fewer than two zeros"
        )
    zero, zero_faults = _zero_points(tensors, layer)
    same = _sameness_faults(layer, groups, zero)
    if same:
        return LayerReport(faults + zero_faults + same)
    size = torch.maximum((groups.most - zero).abs(), (groups.least - zero).abs()) * scale.abs()
    alive = groups.most > groups.least
    faults += zero_faults + _code_faults(layer, groups, zero)
    faults += size_faults(f"{layer.name}.weight_scale", size, alive)
    return LayerReport(faults, float(size[alive].median()))


def _sameness_faults(layer: Linear, groups: Groups, zero: torch.Tensor) -> list[str]:
    """Codes that are all alike, as a whole or within what shares a scale."""
    if groups.is_constant or groups.rows_are_equal:
        what = "one value only" if groups.is_constant else "the same row throughout"
        return [f"{layer.stored} holds {what}"]
    height, width = _block(layer)
    flat = (groups.most == groups.least) & (groups.most != zero)
    if height * width >= SEVERAL and layer.weights.bits > 2 and flat.any():
        row = int(flat.nonzero()[0][0]) * height
        return [f"{layer.stored} holds one value throughout a group in row {row}"]
    if not (groups.most > groups.least).any():
        return [f"{layer.stored} holds one value in every group"]
    return []


def _shape_faults(tensors: CheckpointTensors, layer: Linear) -> list[str]:
    name = f"{layer.name}.weight_shape"
    right = name not in tensors or tensors[name].tolist() == [layer.rows, layer.columns]
    return [] if right else [f"{name} is not {layer.rows} x {layer.columns}"]


def code_range(layer: Linear) -> tuple[float, float]:
    """The smallest and the largest code."""
    return layer.format.code_range(layer.weights)


# Reads the codes of some rows as numbers, by the encoding that the stored format names.
READERS: dict[str, Callable[[torch.Tensor, Linear], torch.Tensor]] = {
    NUMBERS: lambda part, layer: part.float(),
    PACKED_INTEGERS: lambda part, layer: unpack_integers(
        part, layer.weights.bits, layer.columns
    ).float(),
    FP4_PAIRS: lambda part, layer: unpack_fp4(part)[:, : layer.columns],
}


def is_readable(layer: Linear) -> bool:
    """Whether the values of the layer's format can be checked."""
    return SCALE in layer.tensors and layer.tensors[layer.codes_part].encoding in READERS


def chunks(tensors: CheckpointTensors, layer: Linear) -> Iterator[torch.Tensor]:
    """The codes as numbers, some rows at a time."""
    stored = tensors[layer.stored]
    height = _block(layer)[0]
    rows = max(1, ELEMENTS_AT_ONCE // max(1, layer.columns * height)) * height
    for start in range(0, layer.rows, rows):
        part = stored[start : start + rows]
        yield READERS[layer.tensors[layer.codes_part].encoding](part, layer)


def _block(layer: Linear) -> tuple[int, int]:
    """Rows and columns that share a scale."""
    weights = layer.weights
    if weights.strategy == "block":
        assert weights.block_structure is not None
        height, width = weights.block_structure
        return height, width
    if weights.strategy in GROUPED:
        assert weights.group_size is not None
        return 1, weights.group_size
    return 1, layer.columns


def _groups(tensors: CheckpointTensors, layer: Linear, sparse: bool) -> Groups | None:
    """None where a code is no number."""
    height, width = _block(layer)
    least, most, total, broken = [], [], [], 0
    first: torch.Tensor | None = None
    rows_are_equal = True
    for chunk in chunks(tensors, layer):
        if not torch.isfinite(chunk).all():
            return None
        first = chunk[0] if first is None else first
        rows_are_equal = rows_are_equal and bool((chunk == first).all())
        broken += breaks_2_of_4(chunk) if sparse and layer.columns % 4 == 0 else 0
        tiles = _tiles(chunk, height, width)
        least.append(torch.nan_to_num(tiles, math.inf).amin(dim=(1, 3)))
        most.append(torch.nan_to_num(tiles, -math.inf).amax(dim=(1, 3)))
        total.append(torch.nanmean(tiles, dim=(1, 3)))
    low, high, mean = torch.cat(least), torch.cat(most), torch.cat(total)
    if layer.weights.strategy == "tensor":
        low, high, mean = low.amin().reshape(1), high.amax().reshape(1), mean.mean().reshape(1)
    return Groups(
        low,
        high,
        mean,
        is_constant=bool(low.min() == high.max()),
        rows_are_equal=rows_are_equal and layer.rows > 1,
        broken_masks=broken,
    )


def _tiles(chunk: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Cut into what shares a scale; NaN fills what sticks out."""
    rows, columns = chunk.shape
    down, across = -rows % height, -columns % width
    if down or across:
        chunk = torch.nn.functional.pad(chunk, (0, across, 0, down), value=math.nan)
    return chunk.reshape(chunk.shape[0] // height, height, chunk.shape[1] // width, width)


def _scales(tensors: CheckpointTensors, layer: Linear) -> torch.Tensor:
    """What a code is multiplied by, in the shape of the scales."""
    stored = tensors[f"{layer.name}.{SCALE}"]
    if layer.tensors[SCALE].encoding == EXPONENTS:
        exponent = stored.view(torch.uint8).to(torch.float64)
        power = torch.exp2(exponent - MX_BIAS)
        scale = torch.where(exponent == MX_NAN, torch.nan, power)
    else:
        scale = stored.to(torch.float64)
    if f"{layer.name}.weight_global_scale" in tensors:
        scale = scale / tensors[f"{layer.name}.weight_global_scale"].to(torch.float64)
    return scale.reshape(layer.scale_shape)


def negative_share(tensors: CheckpointTensors, layer: Linear) -> float:
    """Negative scales among a layer's."""
    scale = tensors[f"{layer.name}.{SCALE}"]
    return float((scale.double() < 0).double().mean()) if scale.numel() else 0.0


def has_signed_scales(shares: list[float]) -> bool:
    """AutoRound gives a scale the sign that lets the one code more on the negative side serve the
    largest weight: about half of the scales are negative, in every layer."""
    low, high = SIGNED
    return bool(shares) and all(low <= share <= high for share in shares)


def _scale_faults(tensors: CheckpointTensors, layer: Linear, signed: bool) -> list[str]:
    faults = []
    for part in ("weight_scale", "weight_global_scale"):
        name = f"{layer.name}.{part}"
        if name in tensors and tensors[name].is_floating_point():
            small = part == "weight_scale" and tensors.header(name).dtype in ("BF16", "F32")
            smallest = SMALLEST_SCALE if small else 0.0
            largest = LARGEST_SCALE if part == "weight_scale" else math.inf
            scale = tensors[name].double()
            faults += positive_faults(name, scale.abs() if signed else scale, smallest, largest)
            faults += _alike_faults(name, scale)
    return faults


def _alike_faults(name: str, scale: torch.Tensor) -> list[str]:
    """Scales of many rows that repeat: one was written over the others. Powers of two may, since
    they are rounded."""
    if scale.ndim < 2 or scale.shape[0] < SEVERAL:
        return []
    if (
        bool((torch.frexp(scale.float()).mantissa.abs() == 0.5).all())
        and scale.unique().numel() > 1
    ):
        return []
    if bool((scale == scale[:1]).all()):
        return [f"{name} holds the same scales for every row"]
    if scale.shape[1] > 1 and bool((scale == scale[:, :1]).all()):
        return [f"{name} holds the same scale throughout each row"]
    return []


def positive_faults(name: str, scale: torch.Tensor, smallest: float, largest: float) -> list[str]:
    """Scales that are not finite, not positive, or of no sensible size."""
    if not torch.isfinite(scale).all():
        return [f"{name} holds NaN or infinite values"]
    if (scale == 0).any():
        return [f"{name} holds scales of zero"]
    if (scale < 0).any():
        return [f"{name} holds negative scales, such as {float(scale.min()):.3g}"]
    if (scale < smallest).any():
        return [f"{name} holds a scale of {float(scale.min()):.3g}, which is next to zero"]
    if (scale > largest).any():
        return [f"{name} holds a scale of {float(scale.max()):.3g}, at most {largest:g} is usual"]
    return []


def _zero_points(tensors: CheckpointTensors, layer: Linear) -> tuple[torch.Tensor, list[str]]:
    """The zero points in the shape of the scales."""
    name = f"{layer.name}.weight_zero_point"
    none = torch.zeros(layer.scale_shape, dtype=torch.float64)
    if name not in tensors:
        return none, []
    stored = tensors[name]
    if layer.weights.symmetric:
        return none, [f"{name} is not zero, the format is symmetric"] if stored.any() else []
    if tensors.header(name).dtype == "I32":
        stored = unpack_integers(stored.T.contiguous(), layer.weights.bits, layer.rows).T
    zero = stored.double().reshape(layer.scale_shape)
    low, high = code_range(layer)
    outside = bool(((zero < low) | (zero > high)).any())
    return zero, [f"{name} holds values outside {low} to {high}"] if outside else []


def _code_faults(layer: Linear, groups: Groups, zero: torch.Tensor) -> list[str]:
    """The codes against their range and their zero points."""
    low, high = code_range(layer)
    if groups.least.min() < low or groups.most.max() > high:
        bits = layer.weights.bits
        return [f"{layer.stored} holds codes outside {low} to {high}, the range of {bits} bits"]
    if layer.weights.symmetric:
        used = torch.maximum(groups.most, -groups.least) / high
    else:
        used = (groups.most - groups.least) / (high - low)
    alive = groups.most > groups.least
    faults = []
    whole = layer.weights.strategy == "tensor"
    share = float(used[alive].median())
    if share < (LEAST_USED_TENSOR if whole else LEAST_USED):
        faults.append(f"{layer.stored} uses {share:.0%} of the range of its codes")
    centre = (groups.mean - zero).abs() / (high - low)
    if float(centre[alive].median()) > MOST_OFF_CENTRE:
        what = f"{layer.name}.weight_zero_point" if not layer.weights.symmetric else layer.stored
        faults.append(f"{what}: the codes do not lie around their zero point")
    return faults


def size_faults(name: str, size: torch.Tensor, alive: torch.Tensor) -> list[str]:
    """The largest weights of groups or rows, held against each other."""
    most, usual = float(size.max()), float(size[alive].median())
    if most > LARGEST_WEIGHT:
        return [f"{name} gives weights of {most:.3g}, at most {LARGEST_WEIGHT:g} is usual"]
    if most > OUTLIER * usual and most > OUTLIER_FROM:
        return [f"{name} gives weights of {most:.3g}, {most / usual:.0f} times the usual ones"]
    if most < SMALLEST_LAYER:
        return [f"{name} gives no weight above {most:.3g}"]
    return []


def unlike_others(sizes: dict[str, float]) -> list[str]:
    """Layers whose weights are far larger or smaller than those of all others."""
    known = {name: size for name, size in sizes.items() if size > 0}
    if len(known) < SEVERAL // 2:
        return []
    usual = float(torch.tensor(list(known.values()), dtype=torch.float64).median())
    return [
        f"{name} has weights of {size:.3g}, the layers of the model of about {usual:.3g}"
        for name, size in known.items()
        if size > UNLIKE_OTHERS * usual or size < usual / UNLIKE_OTHERS
    ]
