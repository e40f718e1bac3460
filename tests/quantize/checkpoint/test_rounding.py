"""Codes of 16-bit weights are those of a division in float32."""

from pathlib import Path

import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import fake_quantize, quantize
from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import QuantizationModifier
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from quantize.checkpoint.rounding import rounded_in_float32
from quantize.checkpoint.save import save
from tests.quantize.models.mutations import micro

INT8 = QuantizationArgs(num_bits=8, strategy="channel")
GROUP = QuantizationArgs(num_bits=4, symmetric=False, strategy="group", group_size=32)


def random_weights() -> torch.Tensor:
    return torch.randn(64, 32, generator=torch.Generator().manual_seed(0)).bfloat16()


def codes_of(weights: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (weights.float() / scale.float()).round().clamp(-128, 127).to(torch.int8)


def test_a_forward_pass_divides_in_float32() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = random_weights()
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


def test_codes_are_divided_in_float32() -> None:
    weights = random_weights()
    scale = (weights.abs().amax(1, keepdim=True).float() / 127.5).bfloat16()
    zero_point = torch.zeros_like(scale, dtype=torch.int8)
    in_bfloat16 = quantize(weights, scale, zero_point, INT8, dtype=torch.int8)
    with rounded_in_float32():
        in_float32 = quantize(weights, scale, zero_point, INT8, dtype=torch.int8)
        assert quantize(weights, scale, zero_point, INT8).dtype == torch.bfloat16
    assert torch.equal(in_float32, codes_of(weights, scale))
    assert in_float32.dtype == torch.int8
    assert not torch.equal(in_bfloat16, in_float32)  # else the context is not needed any more


def test_a_16_bit_model_is_saved_with_these_codes(tmp_path: Path) -> None:
    source = micro(tmp_path / "source")
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    original = {name: weight.clone() for name, weight in model.state_dict().items()}
    oneshot(model=model, recipe=QuantizationModifier(ignore=["lm_head"], scheme="W8A8"))
    save(model, AutoTokenizer.from_pretrained(source), tmp_path / "saved", torch.bfloat16)
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    scales = {name for name in saved if name.endswith(".weight_scale")}
    assert len(scales) == 14
    for name in scales:
        weight = name.removesuffix("_scale")
        assert torch.equal(saved[weight], codes_of(original[weight], saved[name])), weight
