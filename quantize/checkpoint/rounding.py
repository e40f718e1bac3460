"""Rounding to codes by compressed-tensors, in float32."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from compressed_tensors.quantization.lifecycle import forward_helpers
from compressed_tensors.utils import patch_attr


@contextmanager
def rounded_in_float32() -> Iterator[None]:
    """Makes compressed-tensors divide by scales in float32, in a forward pass and when it saves.

    It divides in the model's own type, but in float32 where Triton rounds: when it saves on most
    GPUs. A 16-bit quotient is often halfway between two codes. So the file of a CPU would have
    other weights than that of a GPU, and the model in memory other weights than the file.
    """
    fake_quantize, quantize = forward_helpers._quantize_dequantize, forward_helpers._quantize

    def fake_quantize_in_float32(
        x: torch.Tensor,
        scale: torch.Tensor,
        zero_point: torch.Tensor | None,
        q_min: torch.Tensor,
        q_max: torch.Tensor,
        args: Any,
        global_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        rounded: torch.Tensor = fake_quantize(
            x.float(), scale.float(), zero_point, q_min, q_max, args, global_scale
        )
        return rounded.to(scale.dtype)

    def quantize_in_float32(
        x: torch.Tensor,
        scale: torch.Tensor,
        zero_point: torch.Tensor | None,
        q_min: torch.Tensor,
        q_max: torch.Tensor,
        args: Any,
        dtype: torch.dtype | None = None,
        global_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        codes: torch.Tensor = quantize(
            x.float(), scale.float(), zero_point, q_min, q_max, args, dtype, global_scale
        )
        return codes.to(dtype or x.dtype)

    with (
        patch_attr(forward_helpers, "_quantize_dequantize", fake_quantize_in_float32),
        patch_attr(forward_helpers, "_quantize", quantize_in_float32),
    ):
        yield
