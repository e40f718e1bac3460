"""Rounding to codes by compressed-tensors, in float32."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from compressed_tensors.quantization.lifecycle import forward_helpers
from compressed_tensors.utils import patch_attr

ROUNDINGS = ("_quantize_dequantize", "_quantize")
"""In a forward pass, and when it saves."""


@contextmanager
def rounded_in_float32() -> Iterator[None]:
    """Makes compressed-tensors divide by scales in float32, in a forward pass and when it saves.

    It divides in the model's own type, but in float32 where Triton rounds: when it saves on most
    GPUs. A 16-bit quotient is often halfway between two codes. So the file of a CPU would have
    other weights than that of a GPU, and the model in memory other weights than the file.
    """
    with ExitStack() as patches:
        for name in ROUNDINGS:
            divided = _dividing_in_float32(getattr(forward_helpers, name))
            patches.enter_context(patch_attr(forward_helpers, name, divided))
        yield


def _dividing_in_float32(rounding: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def rounded(*, x: torch.Tensor, scale: torch.Tensor, **others: Any) -> torch.Tensor:
        result = rounding(x=x.float(), scale=scale.float(), **others)
        return result.to(others.get("dtype") or x.dtype)

    return rounded
