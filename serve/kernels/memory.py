"""Memory of further layouts of the weights, which our kernels keep beside vLLM's."""

from collections.abc import Mapping

from conf.files.stored_tensor import Tensor
from conf.formats.quant_args import QuantizationConfig
from serve.kernels.settings import Settings

PACKED, WORDS = (".weight_packed", ".qweight"), "I32"
"""The packed integers of weight-only formats, W4AFP8 among them."""
EXPERTS = ".experts."  # run by other kernels
EIGHT_BIT = ("I8", "F8_E4M3")
WEIGHT = ".weight"
SPARSE_SHARE = 10 / 16
"""Bytes of a compressed 2:4 weight over dense ones: half of the numbers, and two bits for each."""


def extra_bytes(
    tensors: Mapping[str, Tensor],
    quantization: QuantizationConfig | None,
    settings: Settings,
    is_pruned: bool,
) -> float:
    """Bytes of an engine that exceed the checkpoint's. Negative where the compressed weights take
    the place of dense ones."""
    groups = quantization.groups if quantization is not None else []
    rounds = any(group.activations is not None for group in groups)
    packed_family = "w4afp8" if rounds else "weight_only"
    extra = 0.0
    for name, tensor in tensors.items():
        if EXPERTS in name:
            continue
        if name.endswith(PACKED) and tensor.dtype == WORDS:
            is_copied = packed_family in settings.families and settings.second_layout
            extra += tensor.bytes if is_copied else 0
        elif name.endswith(WEIGHT) and tensor.dtype in EIGHT_BIT and is_pruned:
            extra += sparse_extra(tensor.bytes, settings)
    return extra


def sparse_extra(dense_bytes: int, settings: Settings) -> float:
    """A 2:4 weight is compressed; the dense one is kept beside it unless memory is to be saved."""
    if "sparse" not in settings.families:
        return 0.0
    kept = dense_bytes if settings.second_layout else 0
    return dense_bytes * SPARSE_SHARE + kept - dense_bytes
