"""The model in memory is rounded as the file is."""

import math

import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import fake_quantize

from quantize.checkpoint.reload import mean_divergence, rounded_in_float32

GROUP = QuantizationArgs(num_bits=4, symmetric=False, strategy="group", group_size=32)


def test_weights_are_divided_in_float32() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(64, 32, generator=generator).bfloat16()
    scale = (torch.rand(64, 1, generator=generator) * 0.2 + 0.1).bfloat16()
    zero_point = torch.randint(-4, 4, (64, 1), generator=generator, dtype=torch.int8)
    codes = (weights.float() / scale.float() + zero_point).clamp(-8, 7).round()
    expected = ((codes - zero_point) * scale.float()).bfloat16()
    in_bfloat16 = fake_quantize(weights, scale, zero_point, GROUP)
    with rounded_in_float32():
        in_float32 = fake_quantize(weights, scale, zero_point, GROUP)
    assert torch.equal(in_float32, expected)
    assert in_float32.dtype == torch.bfloat16
    assert not torch.equal(in_bfloat16, expected)  # else the context is not needed any more
    assert torch.equal(fake_quantize(weights, scale, zero_point, GROUP), in_bfloat16)


def test_a_divergence_is_never_negative_and_hides_no_nan() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(64, 50, generator=generator)
    shifts = [torch.full_like(logits, shift) for shift in (0.0, 0.1, 3.0, 17.0)]
    found = [mean_divergence(logits, logits + shift) for shift in shifts]
    assert min(found) >= 0
    assert max(found) < 1e-6
    logits[3, 4] = torch.nan
    assert math.isnan(mean_divergence(logits, logits))
