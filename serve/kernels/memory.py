"""Memory of further layouts of the weights, which our kernels may keep beside vLLM's.

What a plan keeps is known after its products were measured, when the engine loads. Here is the most
that it can keep.
"""

from collections.abc import Mapping

from conf.files.stored_tensor import Tensor
from conf.formats.quant_args import QuantizationConfig
from conf.schema.kernels import SPARSE, W4AFP8, WEIGHT_ONLY
from serve.kernels.settings import Settings

PACKED, WORDS = {".weight_packed": ".weight_scale", ".qweight": ".scales"}, "I32"
"""The packed integers of weight-only formats, W4AFP8 among them, and their scales."""
EXPERTS = ".experts."  # run by other kernels
EIGHT_BIT = ("I8", "F8_E4M3")
WEIGHT = ".weight"
FURTHER_LAYOUTS = {WEIGHT_ONLY: 3, W4AFP8: 4, SPARSE: 3}
"""Beside vLLM's own: Marlin's or Machete's, the stored words, and those of few tokens; for W4AFP8
all four of them; for 2:4 weights two of few tokens, and that of cuSPARSELt."""
SPARSE_SHARE = 10 / 16
"""Bytes of a compressed 2:4 weight over dense ones: half of the numbers, and two bits for each."""


def extra_bytes(
    tensors: Mapping[str, Tensor],
    quantization: QuantizationConfig | None,
    settings: Settings,
    is_pruned: bool,
) -> float:
    """The most bytes by which an engine's weights exceed the checkpoint's, if it has room."""
    if settings.second_layout is False:
        return 0.0
    groups = quantization.groups if quantization is not None else []
    rounds = any(group.activations is not None for group in groups)
    packed_copies = _copies(W4AFP8 if rounds else WEIGHT_ONLY, settings)
    sparse_copies = _copies(SPARSE, settings) * SPARSE_SHARE if is_pruned else 0.0
    extra = 0.0
    for name, tensor in tensors.items():
        if EXPERTS in name:
            continue
        if tensor.dtype == WORDS:
            extra += packed_copies * _packed_bytes(name, tensors)
        elif name.endswith(WEIGHT) and tensor.dtype in EIGHT_BIT:
            extra += sparse_copies * tensor.bytes
    return extra


def has_room(extra: float, left: float, cache: float | None) -> bool:
    """Whether an engine keeps further layouts of its weights where the settings leave it to it.
    `extra`: their size; `left`: what the weights leave of the memory; `cache`: what is reserved for
    the KV cache, None where it takes all that is left."""
    return extra <= (left / 2 if cache is None else left - cache)


def _copies(family: str, settings: Settings) -> int:
    return FURTHER_LAYOUTS[family] if family in settings.families else 0


def _packed_bytes(name: str, tensors: Mapping[str, Tensor]) -> float:
    """Bytes of packed weights and their scales; 0 for other integers."""
    for ending, scales_ending in PACKED.items():
        if name.endswith(ending):
            scales = tensors.get(name.removesuffix(ending) + scales_ending)
            return tensors[name].bytes + (scales.bytes if scales is not None else 0)
    return 0
