"""Micro checkpoints, a few kilobytes each: every stored format, made by plain rounding.

Written without compressed-tensors, so that the proof is tested against the format and not against
the library.
"""

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from quantize.checkpoint.manifest import Manifest, sealed
from quantize.checkpoint.manifest_parts import RecipeClaim
from quantize.checkpoint.verify import requested_recipe, verify

Tensors = dict[str, torch.Tensor]
WEIGHTS = "model.safetensors"
Q = "model.layers.0.self_attn.q_proj"
VOCABULARY = 96
GROUP = 32
FP8 = torch.float8_e4m3fn
FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
FORMATS = ("int8", "fp8", "fp8_block", "int4", "int4_asymmetric", "int3", "nvfp4")
SHAPE = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": VOCABULARY,
    "max_position_embeddings": 128, "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip


def make_original(folder: Path, family: str = "qwen3", tied: bool = True) -> Path:
    """A model with random weights and a tokenizer."""
    kind = {"qwen3": Qwen3Config, "llama": LlamaConfig}[family]
    torch.manual_seed(0)
    config = kind(**SHAPE, tie_word_embeddings=tied, dtype="bfloat16")
    if family == "llama":
        config.attention_bias = True
    model = AutoModelForCausalLM.from_config(config)
    model.to(torch.bfloat16).save_pretrained(folder)
    words = {f"w{number}": number for number in range(VOCABULARY)}
    Tokenizer(models.WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "w1"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def make_checkpoint(folder: Path, original: Path, form: str, cache: bool = False) -> Path:
    """The original's linear layers in one of FORMATS; `cache`: with scales for an FP8 cache."""
    folder.mkdir(parents=True)
    tensors: Tensors = {}
    for name, tensor in load_file(original / WEIGHTS).items():
        if name.endswith("_proj.weight"):
            parts = STORE[form](tensor.float())
            owner = name.removesuffix("weight")
            tensors |= {f"{owner}{part}": value.contiguous() for part, value in parts.items()}
        else:
            tensors[name] = tensor
    config = json.loads((original / "config.json").read_text())
    config["quantization_config"] = quantization(form)
    if cache:
        numbers = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
        config["quantization_config"]["kv_cache_scheme"] = numbers
        for layer in range(SHAPE["num_hidden_layers"]):
            for part in ("k_scale", "v_scale"):
                tensors[f"model.layers.{layer}.self_attn.{part}"] = torch.tensor([0.05])
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (folder / name).write_bytes((original / name).read_bytes())
    return folder


def quantization(form: str) -> dict[str, Any]:
    token = {"num_bits": 8, "strategy": "token", "dynamic": True}
    groups: dict[str, tuple[str, dict[str, Any], dict[str, Any] | None]] = {
        "int8": ("int-quantized", {"num_bits": 8, "strategy": "channel"}, token),
        "fp8": (
            "float-quantized",
            {"num_bits": 8, "type": "float", "strategy": "channel"},
            token | {"type": "float"},
        ),
        "fp8_block": (
            "float-quantized",
            {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [32, 32]},
            {
                "num_bits": 8,
                "type": "float",
                "strategy": "group",
                "group_size": 32,
                "dynamic": True,
            },
        ),
        "int4": ("pack-quantized", _grouped(4, True), None),
        "int4_asymmetric": ("pack-quantized", _grouped(4, False), None),
        "int3": ("pack-quantized", _grouped(3, True), None),
        "nvfp4": (
            "nvfp4-pack-quantized",
            {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
            None,
        ),
    }
    name, weights, inputs = groups[form]
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "format": name}
    return {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": name,
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }


def _grouped(bits: int, symmetric: bool) -> dict[str, Any]:
    return {"num_bits": bits, "strategy": "group", "group_size": GROUP, "symmetric": symmetric}


def _int8(weight: torch.Tensor) -> Tensors:
    scale = weight.abs().amax(dim=1, keepdim=True) / 127
    return {"weight": (weight / scale).round().to(torch.int8), "weight_scale": scale}


def _fp8(weight: torch.Tensor) -> Tensors:
    scale = weight.abs().amax(dim=1, keepdim=True) / 448
    return {"weight": (weight / scale).to(FP8), "weight_scale": scale}


def _fp8_block(weight: torch.Tensor) -> Tensors:
    tiles = weight.reshape(weight.shape[0] // 32, 32, -1, 32)
    scale = tiles.abs().amax(dim=(1, 3)) / 448
    codes = (tiles / scale[:, None, :, None]).reshape(weight.shape).to(FP8)
    return {"weight": codes, "weight_scale": scale}


def _packed(weight: torch.Tensor, bits: int, symmetric: bool) -> Tensors:
    groups = weight.reshape(weight.shape[0], -1, GROUP)
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    least, most = groups.amin(dim=2).clamp(max=0), groups.amax(dim=2).clamp(min=0)
    if symmetric:
        scale = torch.maximum(most, -least) / ((high - low) / 2)
        zero = torch.zeros_like(scale)
    else:
        scale = (most - least) / (high - low)
        zero = (low - least / scale).round()
    codes = (groups / scale[..., None] + zero[..., None]).round().clamp(low, high)
    parts = {
        "weight_packed": pack(codes.reshape(weight.shape).long(), bits),
        "weight_scale": scale,
        "weight_shape": torch.tensor(weight.shape),
    }
    return parts if symmetric else parts | {"weight_zero_point": pack(zero.long().T, bits).T}


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Bit by bit, the first code in the lowest bits of the first word."""
    plain = codes + (1 << (bits - 1))
    stream = ((plain[..., None] >> torch.arange(bits)) & 1).flatten(-2)
    stream = torch.nn.functional.pad(stream, (0, -stream.shape[-1] % 32))
    words = (stream.reshape(*stream.shape[:-1], -1, 32) << torch.arange(32)).sum(dim=-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def _nvfp4(weight: torch.Tensor) -> Tensors:
    overall = 448 * 6 / weight.abs().max()
    groups = weight.reshape(weight.shape[0], -1, 16)
    scale = (groups.abs().amax(dim=2) / 6 * overall).to(FP8)
    scaled = groups / (scale.float() / overall)[..., None]
    nearest = (scaled.abs()[..., None] - FP4).abs().argmin(dim=-1)
    codes = (nearest + 8 * (scaled < 0)).reshape(weight.shape).to(torch.uint8)
    packed = codes[:, ::2] | (codes[:, 1::2] << 4)
    overall = overall.reshape(1)
    return {"weight_packed": packed, "weight_scale": scale, "weight_global_scale": overall}


STORE = {
    "int8": _int8,
    "fp8": _fp8,
    "fp8_block": _fp8_block,
    "int4": lambda weight: _packed(weight, 4, True),
    "int4_asymmetric": lambda weight: _packed(weight, 4, False),
    "int3": lambda weight: _packed(weight, 3, True),
    "nvfp4": _nvfp4,
}


def add_manifest(folder: Path, original: Path) -> None:
    """The manifest that quantize would have written for an `int8` checkpoint."""
    numbers = {"block_structure": None, "group_size": None, "symmetric": True, "scale_type": None}
    weights = numbers | {"type": "int", "bits": 8, "strategy": "channel", "dynamic": False}
    inputs = weights | {"strategy": "token", "dynamic": True}
    recipe = {
        "name": "plain", "file": None, "description": "", "when": "", "hardware": "",
        "steps": ["rounding"], "weights": weights, "activations": inputs, "lm_head": None,
        "kv_cache": None, "targets": ["Linear"], "ignore": ["lm_head"],
    }  # fmt: skip
    proof = verify(folder, False, original, requested_recipe(RecipeClaim.model_validate(recipe)))
    assert proof.faults == []
    manifest = Manifest(
        model="micro", recipe="plain", model_config={"name": "micro", "id": None, "revision": None},
        model_sha256="0" * 64, recipe_config=recipe, text=None, errors={Q: {"rounding": math.nan}},
        fallbacks=[], layer_seconds={}, resumed_layers=0, seconds={"save": 0.1},
        peak_memory_gib={"host": 1.0}, versions={"torch": "2"}, device="cpu",
        proof={**vars(proof), "reload_divergence": 0.0}, canary={"prompt": "a", "answer": "b"},
    )  # fmt: skip
    manifest.seal(folder, original)
    manifest.write(folder)


def rewrite(folder: Path, change: Any) -> None:
    """Changes the tensors of a folder."""
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / WEIGHTS)


def edit(path: Path, change: Any, seal: bool = False) -> None:
    """Changes a JSON file; `seal`: gives a manifest the digest that belongs to its new content."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(sealed(content) if seal else content))
