"""Runs the kernels in Triton's interpreter, and prints which share of their results differs from
transformers' own. In float16: the interpreter does not round to bfloat16."""

import json

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, apply_rotary_pos_emb

from quantize.calibrate.elementwise import kernels
from quantize.calibrate.elementwise.modules import replaced


def say(name: str, found: torch.Tensor, right: torch.Tensor) -> None:
    assert found.shape == right.shape
    assert found.dtype == right.dtype
    different = (found != right).float().mean().item()
    print(json.dumps({"name": name, "error": different}), flush=True)


def norms() -> None:
    for width in (96, 128, 5000):
        norm = Qwen3RMSNorm(width).half()
        norm.weight.data.normal_()
        inputs = torch.randn(3, 5, width).half()
        say(f"norm {width}", kernels.rms_norm(inputs, norm.weight, 1e-6), norm(inputs))


def rotations() -> None:
    q, k = (torch.randn(2, 5, heads, 32).half().transpose(1, 2) for heads in (6, 3))
    for batch in (1, 2):
        angles = torch.randn(batch, 5, 32)
        cos, sin = angles.cos().half(), angles.sin().half()
        for name, states, right in zip(
            "qk", (q, k), apply_rotary_pos_emb(q, k, cos, sin), strict=True
        ):
            found = kernels.rotate(states, cos, sin)
            assert found.stride() == right.stride()
            say(f"rotary {name} {batch}", found, right)
    q, k, cos, sin = (tensor[..., :16] for tensor in (q, k, cos, sin))
    right, _ = apply_rotary_pos_emb(q, k, cos, sin)
    say("rotary of a slice", kernels.rotate(q, cos, sin), right)


def activations() -> None:
    gate, up = torch.randn(7, 1000).half() * 4, torch.randn(7, 1000).half()
    right = torch.nn.functional.silu(gate) * up
    say("gated activation", kernels.silu_product(gate, up), right)


def model() -> None:
    config = AutoConfig.for_model(
        "qwen3", hidden_size=64, intermediate_size=96, num_hidden_layers=2, vocab_size=128,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16,
    )  # fmt: skip
    whole = AutoModelForCausalLM.from_config(config, dtype=torch.float16)
    tokens = torch.arange(12).unsqueeze(0)
    right = whole(tokens).logits
    with replaced(whole, torch.device("cpu"), kernels):
        found = whole(tokens).logits
    difference = float((found - right).abs().max() / right.abs().max())
    print(json.dumps({"name": "model", "error": difference}), flush=True)


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with torch.no_grad():
        norms()
        rotations()
        activations()
        model()
