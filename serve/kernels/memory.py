"""Memory of further layouts of the weights, which our kernels may keep beside vLLM's.

What a plan keeps is known after its products were measured, when the engine loads. Here is the most
that it can keep.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from conf.files.stored_tensor import Tensor
from conf.formats.base.targets import group_of
from conf.formats.quant_args import QuantGroup, QuantizationConfig
from conf.schema.kernels import SPARSE, W4AFP8, WEIGHT_ONLY
from serve.kernels.settings import Settings

PACKED, WORDS = {".weight_packed": ".weight_scale", ".qweight": ".scales"}, "I32"
"""The packed integers of weight-only formats, W4AFP8 among them, and their scales."""
EXPERTS = ".experts."  # run by other kernels
STORED_FP8 = "F8_E4M3"
STORED_8_BIT = ("I8", STORED_FP8)
WEIGHT = ".weight"
BITS_OF_W4AFP8 = 4
FURTHER_LAYOUTS = {WEIGHT_ONLY: 3, W4AFP8: 4, SPARSE: 3}
"""Beside vLLM's own: Marlin's or Machete's, the stored words, and those of few tokens (an FP8 head
has one less); for W4AFP8 all four of them; for 2:4 weights two of few tokens, and that of
cuSPARSELt."""
SPARSE_SHARE = 10 / 16
"""Bytes of a compressed 2:4 weight over dense ones: half of the numbers, and two bits for each."""


WORKING = 4 * 2**30
"""For activations, graphs and libraries, where the size of the KV cache is given."""


def extra_bytes(
    tensors: Mapping[str, Tensor],
    quantization: QuantizationConfig | None,
    settings: Settings,
    is_pruned: bool,
) -> float:
    """The most bytes by which an engine's weights exceed the checkpoint's, if it has room."""
    if settings.second_layout is False:
        return 0.0
    extra = 0.0
    for name, tensor in tensors.items():
        family = _family(name, tensor, quantization, is_pruned)
        if family is not None and family in settings.families:
            held = _packed_bytes(name, tensors) if tensor.dtype == WORDS else tensor.bytes
            extra += most_copies(family) * held
    return extra


@dataclass(frozen=True)
class Room:
    """A GPU's memory beside an engine's weights, in bytes."""

    weights: float
    """All weights on the GPU, also those without copies."""
    usable: float
    """What they leave of the memory that the engine may use."""
    free: float
    """What they leave free."""

    def is_enough(self, family: str, cache: float | None) -> bool:
        """Whether the engine keeps further layouts where the settings leave it to it. `cache`: what
        is reserved for the KV cache, None where it takes all that is left."""
        room = min(self.usable, self.free) / 2
        if cache is not None:
            room = self.free - cache - WORKING
        return most_copies(family) * self.weights <= room


def most_copies(family: str) -> float:
    """The most bytes of further layouts over those of the weights."""
    return FURTHER_LAYOUTS[family] * (SPARSE_SHARE if family == SPARSE else 1)


def copying_families(
    tensors: Mapping[str, Tensor],
    quantization: QuantizationConfig | None,
    settings: Settings,
    is_pruned: bool,
) -> set[str]:
    """The families that copy a checkpoint's weights in an engine with these settings. There are
    several where its layers differ in format."""
    families = {_family(name, tensor, quantization, is_pruned) for name, tensor in tensors.items()}
    return {family for family in families if family is not None and family in settings.families}


def is_eight_bit(name: str, tensor: Tensor) -> bool:
    """Whether it is a weight that our kernels of INT8 and FP8 may multiply."""
    return name.endswith(WEIGHT) and tensor.dtype in STORED_8_BIT and EXPERTS not in name


def _family(
    name: str, tensor: Tensor, quantization: QuantizationConfig | None, is_pruned: bool
) -> str | None:
    """The family that copies a weight; None for other tensors, and where none does."""
    if tensor.dtype == WORDS and EXPERTS not in name and name.endswith(tuple(PACKED)):
        return _packed_family(name.rpartition(".")[0], quantization)
    if _is_plain_fp8_head(name, tensor, quantization):
        return WEIGHT_ONLY
    return SPARSE if is_pruned and is_eight_bit(name, tensor) else None


def _is_plain_fp8_head(name: str, tensor: Tensor, quantization: QuantizationConfig | None) -> bool:
    """Whether it is an FP8 head whose activations stay in 16 bit."""
    if quantization is None or tensor.dtype != STORED_FP8 or not name.endswith(WEIGHT):
        return False
    group = group_of(quantization, name.removesuffix(WEIGHT))
    return group is not None and group.is_head and group.activations is None


def _packed_family(module: str, quantization: QuantizationConfig | None) -> str:
    """By the group of the module. Where the targets do not tell, the one with the most copies."""
    if quantization is None:
        return WEIGHT_ONLY
    group = group_of(quantization, module)
    groups = quantization.groups if group is None else [group]
    return W4AFP8 if any(map(_is_w4afp8, groups)) else WEIGHT_ONLY


def _is_w4afp8(group: QuantGroup) -> bool:
    has_four_bits = group.weights is not None and group.weights.bits == BITS_OF_W4AFP8
    return has_four_bits and group.activations is not None


def _packed_bytes(name: str, tensors: Mapping[str, Tensor]) -> float:
    """Bytes of packed weights and their scales."""
    ending = next(ending for ending in PACKED if name.endswith(ending))
    scales = tensors.get(name.removesuffix(ending) + PACKED[ending])
    return tensors[name].bytes + (scales.bytes if scales is not None else 0)
