"""Memory of further layouts of the weights, which our kernels may keep beside vLLM's.

What a plan keeps is known after its products were measured, when the engine loads. Here is the most
that it can keep.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from conf.files.stored_tensor import Tensor
from conf.formats.quant_args import QuantizationConfig
from conf.schema.kernels import SPARSE, W4AFP8, WEIGHT_ONLY
from serve.kernels.settings import Settings

PACKED, WORDS = {".weight_packed": ".weight_scale", ".qweight": ".scales"}, "I32"
"""The packed integers of weight-only formats, W4AFP8 among them, and their scales."""
EXPERTS = ".experts."  # run by other kernels
STORED_8_BIT = ("I8", "F8_E4M3")
WEIGHT = ".weight"
FURTHER_LAYOUTS = {WEIGHT_ONLY: 3, W4AFP8: 4, SPARSE: 3}
"""Beside vLLM's own: Marlin's or Machete's, the stored words, and those of few tokens; for W4AFP8
all four of them; for 2:4 weights two of few tokens, and that of cuSPARSELt."""
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
    packed_copies = _copies(_packed_family(quantization), settings)
    sparse_copies = _copies(SPARSE, settings) * SPARSE_SHARE if is_pruned else 0.0
    extra = 0.0
    for name, tensor in tensors.items():
        if _is_packed(name, tensor):
            extra += packed_copies * _packed_bytes(name, tensors)
        elif name.endswith(WEIGHT) and tensor.dtype in STORED_8_BIT and EXPERTS not in name:
            extra += sparse_copies * tensor.bytes
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


def copying_family(
    tensors: Mapping[str, Tensor], quantization: QuantizationConfig | None, is_pruned: bool
) -> str | None:
    """The family that copies a checkpoint's weights, if there is one."""
    if any(_is_packed(name, tensor) for name, tensor in tensors.items()):
        return _packed_family(quantization)
    return SPARSE if is_pruned else None


def _packed_family(quantization: QuantizationConfig | None) -> str:
    groups = quantization.groups if quantization is not None else []
    return W4AFP8 if any(group.activations is not None for group in groups) else WEIGHT_ONLY


def _is_packed(name: str, tensor: Tensor) -> bool:
    return tensor.dtype == WORDS and EXPERTS not in name and name.endswith(tuple(PACKED))


def _copies(family: str, settings: Settings) -> int:
    return FURTHER_LAYOUTS[family] if family in settings.families else 0


def _packed_bytes(name: str, tensors: Mapping[str, Tensor]) -> float:
    """Bytes of packed weights and their scales."""
    ending = next(ending for ending in PACKED if name.endswith(ending))
    scales = tensors.get(name.removesuffix(ending) + PACKED[ending])
    return tensors[name].bytes + (scales.bytes if scales is not None else 0)
