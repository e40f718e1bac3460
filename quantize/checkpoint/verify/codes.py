"""The stored numbers of one quantized layer, and whether they fit their scales.

A scale is computed from the largest weight that it serves. So the codes of a sound layer use their
range, lie around their zero point, and give weights of similar size. The limits are far from the
values of trained or random weights: they detect damage, not poor quality.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from conf.formats.base.tensors import EXPONENTS, FP4_PAIRS, NUMBERS, PACKED_INTEGERS
from conf.formats.quant_args import GROUPED
from quantize.checkpoint.tensors import (
    CheckpointTensors,
    breaks_2_of_4,
    checking_device,
    unpack_fp4,
    unpack_integers,
)
from quantize.checkpoint.verify.expected import Linear

ELEMENTS_AT_ONCE = 1 << 24
LEAST_USED = 0.55  # of the codes' range, by the median group; sound layers show 0.66 and more
LEAST_USED_TENSOR = 0.01  # one scale may serve several fused layers
MOST_OFF_CENTRE = 0.1  # of the codes' range, by the median group; sound layers show 0.05
LARGEST_WEIGHT = 1e4
OUTLIER, OUTLIER_FROM = 256, 4.0  # times the usual mean size, and at least this large
SMALLEST_LAYER = 1e-8  # largest weight of a layer
UNLIKE_OTHERS = 64  # factor between a layer's weights and the median layer's
ENOUGH_VALUES = 16  # scales or codes; of this many at least two should differ
# Trained weights have a few small groups of equal values: of 272,384 groups of 16 in a layer of
# Qwen2.5-Coder-0.5B up to 16.
SMALL_GROUP, MOST_CONSTANT = 64, 2e-4  # weights; share of a layer's groups
LARGEST_SCALE, SMALLEST_SCALE = 1e4, 1e-30
NEGATIVE_SHARES = (0.1, 0.9)  # range of the share of negative scales in each layer
MX_BIAS, MX_NAN = 127, 255
SCALE = "weight_scale"


@dataclass
class Groups:
    """Statistics of the codes that share a scale, each in the shape of the scales."""

    least: torch.Tensor
    most: torch.Tensor
    mean: torch.Tensor
    deviation: torch.Tensor
    """Mean distance from the mean."""
    is_constant: bool
    rows_are_equal: bool
    broken_masks: int = 0
    """Groups of four with fewer than two zeros."""


@dataclass
class LayerReport:
    """The faults of a layer, and how large its weights are."""

    faults: list[str]
    typical_size: float = 0.0
    """Median over groups of the largest weight; 0 if unknown."""


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
    zero_points, zero_faults = _zero_points(tensors, layer)
    constant_faults = _constant_faults(layer, groups, zero_points)
    if constant_faults:
        return LayerReport(faults + zero_faults + constant_faults)
    group_sizes = (
        torch.maximum((groups.most - zero_points).abs(), (groups.least - zero_points).abs())
        * scale.abs()
    )
    nonconstant = groups.most > groups.least
    faults += zero_faults + _code_faults(layer, groups, zero_points)
    typical_sizes = groups.deviation * scale.abs()
    faults += size_faults(f"{layer.name}.weight_scale", group_sizes, typical_sizes, nonconstant)
    return LayerReport(faults, float(group_sizes[nonconstant].median()))


def _constant_faults(layer: Linear, groups: Groups, zero_points: torch.Tensor) -> list[str]:
    """Codes that are constant, in the whole layer or in a group that shares a scale."""
    if groups.is_constant or groups.rows_are_equal:
        content = "one value only" if groups.is_constant else "the same row throughout"
        return [f"{layer.stored} holds {content}"]
    height, width = _block(layer)
    flat = (groups.most == groups.least) & (groups.most != zero_points)
    is_judged = height * width >= ENOUGH_VALUES and layer.weights.bits > 2
    allowed = MOST_CONSTANT * flat.numel() if height * width < SMALL_GROUP else 0
    whole_rows = flat.all(dim=1) if flat.dim() == 2 else flat
    if is_judged and (whole_rows.any() or flat.sum() > allowed):
        row = int((whole_rows if whole_rows.any() else flat).nonzero()[0][0]) * height
        return [f"{layer.stored} holds one value throughout a group in row {row}"]
    if not (groups.most > groups.least).any():
        return [f"{layer.stored} holds one value in every group"]
    return []


def _shape_faults(tensors: CheckpointTensors, layer: Linear) -> list[str]:
    name = f"{layer.name}.weight_shape"
    is_correct = name not in tensors or tensors[name].tolist() == [layer.rows, layer.columns]
    return [] if is_correct else [f"{name} is not {layer.rows} x {layer.columns}"]


def code_range(layer: Linear) -> tuple[float, float]:
    """The smallest and the largest code."""
    return layer.format.code_range(layer.weights)


# Reads the codes of some rows as numbers, by the encoding that the stored format names.
READERS: dict[str, Callable[[torch.Tensor, Linear], torch.Tensor]] = {
    NUMBERS: lambda codes, layer: codes.float(),
    PACKED_INTEGERS: lambda codes, layer: unpack_integers(
        codes, layer.weights.bits, layer.columns
    ).float(),
    FP4_PAIRS: lambda codes, layer: unpack_fp4(codes)[:, : layer.columns],
}


def is_readable(layer: Linear) -> bool:
    """Whether the values of the layer's format can be checked."""
    return SCALE in layer.tensors and layer.tensors[layer.codes_suffix].encoding in READERS


def chunks(tensors: CheckpointTensors, layer: Linear) -> Iterator[torch.Tensor]:
    """The codes as numbers, some rows at a time; on the GPU, if there is one."""
    stored = tensors[layer.stored]
    height = _block(layer)[0]
    rows = max(1, ELEMENTS_AT_ONCE // max(1, layer.columns * height)) * height
    for start in range(0, layer.rows, rows):
        codes = stored[start : start + rows].to(checking_device())
        yield READERS[layer.tensors[layer.codes_suffix].encoding](codes, layer)


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
    """Statistics of each group; None if a code is NaN or infinite."""
    height, width = _block(layer)
    least, most, means, deviations, broken = [], [], [], [], 0
    first: torch.Tensor | None = None
    rows_are_equal = True
    for chunk in chunks(tensors, layer):
        first = chunk[0] if first is None else first
        rows_are_equal = rows_are_equal and bool((chunk == first).all())
        broken += breaks_2_of_4(chunk) if sparse and layer.columns % 4 == 0 else 0
        tiles = _tiles(chunk, height, width)
        is_padded = tiles.numel() > chunk.numel()
        if is_padded and not torch.isfinite(chunk).all():
            return None
        least.append((torch.nan_to_num(tiles, math.inf) if is_padded else tiles).amin(dim=(1, 3)))
        most.append((torch.nan_to_num(tiles, -math.inf) if is_padded else tiles).amax(dim=(1, 3)))
        average = torch.nanmean if is_padded else torch.mean
        means.append(average(tiles, dim=(1, 3)))
        distances = (tiles - means[-1][:, None, :, None]).abs()
        deviations.append(average(distances, dim=(1, 3)))
    low, high, mean, deviation = (
        torch.cat(found).cpu() for found in (least, most, means, deviations)
    )
    if not (torch.isfinite(low) & torch.isfinite(high)).all():  # extremes take up NaN
        return None
    if layer.weights.strategy == "tensor":
        low, high = low.amin().reshape(1), high.amax().reshape(1)
        mean, deviation = mean.mean().reshape(1), deviation.mean().reshape(1)
    return Groups(
        low,
        high,
        mean,
        deviation,
        is_constant=bool(low.min() == high.max()),
        rows_are_equal=rows_are_equal and layer.rows > 1,
        broken_masks=broken,
    )


def _tiles(chunk: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """The codes cut into groups that share a scale; NaN pads incomplete groups."""
    rows, columns = chunk.shape
    down, across = -rows % height, -columns % width
    if down or across:
        chunk = torch.nn.functional.pad(chunk, (0, across, 0, down), value=math.nan)
    return chunk.reshape(chunk.shape[0] // height, height, chunk.shape[1] // width, width)


def _scales(tensors: CheckpointTensors, layer: Linear) -> torch.Tensor:
    """The factor of each code, in the shape of the scales."""
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
    """The share of a layer's scales that are negative."""
    scale = tensors[f"{layer.name}.{SCALE}"]
    return float((scale.double() < 0).double().mean()) if scale.numel() else 0.0


def has_signed_scales(shares: list[float]) -> bool:
    """Whether the scales look like AutoRound's. It makes a scale negative if the extra code on the
    negative side then serves the largest weight: about half of them, in every layer."""
    low, high = NEGATIVE_SHARES
    return bool(shares) and all(low <= share <= high for share in shares)


def _scale_faults(tensors: CheckpointTensors, layer: Linear, signed: bool) -> list[str]:
    faults = []
    for suffix in ("weight_scale", "weight_global_scale"):
        name = f"{layer.name}.{suffix}"
        if name in tensors and tensors[name].is_floating_point():
            has_least = suffix == "weight_scale" and tensors.header(name).dtype in ("BF16", "F32")
            smallest = SMALLEST_SCALE if has_least else 0.0
            largest = LARGEST_SCALE if suffix == "weight_scale" else math.inf
            scale = tensors[name].double()
            faults += positive_faults(name, scale.abs() if signed else scale, smallest, largest)
            faults += _repeated_scale_faults(name, scale)
    return faults


def _repeated_scale_faults(name: str, scale: torch.Tensor) -> list[str]:
    """Scales that are the same in many rows: one was written over the others. Powers of two may
    repeat, since they are rounded."""
    if scale.ndim < 2 or scale.shape[0] < ENOUGH_VALUES:
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
    """Scales that are not finite, not positive, or of an implausible size."""
    if not torch.isfinite(scale).all():
        return [f"{name} holds NaN or infinite values"]
    if (scale == 0).any():
        return [f"{name} holds scales of zero"]
    if (scale < 0).any():
        return [f"{name} holds negative scales, such as {float(scale.min()):.3g}"]
    if (scale < smallest).any():
        return [f"{name} holds a scale of {float(scale.min()):.3g}, which is nearly zero"]
    if (scale > largest).any():
        return [f"{name} holds a scale of {float(scale.max()):.3g}, at most {largest:g} is usual"]
    return []


def _zero_points(tensors: CheckpointTensors, layer: Linear) -> tuple[torch.Tensor, list[str]]:
    """The zero points in the shape of the scales, and their faults."""
    name = f"{layer.name}.weight_zero_point"
    zeros = torch.zeros(layer.scale_shape, dtype=torch.float64)
    if name not in tensors:
        return zeros, []
    stored = tensors[name]
    if layer.weights.symmetric:
        return zeros, [f"{name} is not zero, the format is symmetric"] if stored.any() else []
    if tensors.header(name).dtype == "I32":
        stored = unpack_integers(stored.T.contiguous(), layer.weights.bits, layer.rows).T
    zero_points = stored.double().reshape(layer.scale_shape)
    low, high = code_range(layer)
    outside = bool(((zero_points < low) | (zero_points > high)).any())
    return zero_points, [f"{name} holds values outside {low} to {high}"] if outside else []


def _code_faults(layer: Linear, groups: Groups, zero_points: torch.Tensor) -> list[str]:
    """Codes outside their range, or not around their zero points."""
    low, high = code_range(layer)
    if groups.least.min() < low or groups.most.max() > high:
        bits = layer.weights.bits
        return [f"{layer.stored} holds codes outside {low} to {high}, the range of {bits} bits"]
    if layer.weights.symmetric:
        used_shares = torch.maximum(groups.most, -groups.least) / high
    else:
        used_shares = (groups.most - groups.least) / (high - low)
    nonconstant = groups.most > groups.least
    faults = []
    per_tensor = layer.weights.strategy == "tensor"
    median_share = float(used_shares[nonconstant].median())
    if median_share < (LEAST_USED_TENSOR if per_tensor else LEAST_USED):
        faults.append(f"{layer.stored} uses {median_share:.0%} of the range of its codes")
    offsets = (groups.mean - zero_points).abs() / (high - low)
    if float(offsets[nonconstant].median()) > MOST_OFF_CENTRE:
        tensor_name = (
            f"{layer.name}.weight_zero_point" if not layer.weights.symmetric else layer.stored
        )
        faults.append(f"{tensor_name}: the codes do not lie around their zero point")
    return faults


def size_faults(
    name: str, sizes: torch.Tensor, typical: torch.Tensor, counted: torch.Tensor
) -> list[str]:
    """Implausible sizes. `sizes`: the largest weight of each group or row; `typical`: the mean size
    of its weights; `counted`: those that count for the median. A wrong scale makes all weights of a
    group large. Trained models have single ones, which AWQ makes ten times larger: 600 times the
    largest of a usual group were seen in a sound layer."""
    largest = float(sizes.max())
    times = float(typical.max() / typical[counted].median())
    if largest > LARGEST_WEIGHT:
        return [f"{name} gives weights of {largest:.3g}, at most {LARGEST_WEIGHT:g} is usual"]
    if times > OUTLIER and largest > OUTLIER_FROM:
        return [f"{name} gives weights of {largest:.3g}, {times:.0f} times the usual ones"]
    if largest < SMALLEST_LAYER:
        return [f"{name} gives no weight above {largest:.3g}"]
    return []


def size_outliers(sizes: dict[str, float]) -> list[str]:
    """Layers whose weights are far larger or smaller than those of all others."""
    known_sizes = {name: size for name, size in sizes.items() if size > 0}
    if len(known_sizes) < ENOUGH_VALUES // 2:
        return []
    median = float(torch.tensor(list(known_sizes.values()), dtype=torch.float64).median())
    return [
        f"{name} has weights of {size:.3g}, the layers of the model of about {median:.3g}"
        for name, size in known_sizes.items()
        if size > UNLIKE_OTHERS * median or size < median / UNLIKE_OTHERS
    ]
