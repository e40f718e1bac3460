"""Loads a model for quantizing, in a number type that this machine computes in."""

import tempfile
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.quantization import QuantizationConfig
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging

from conf.errors import bad_input, reading, writing
from conf.formats import nvfp4
from conf.formats.quantization_config import KEY, read_quantization
from conf.formats.registry import format_of
from conf.hardware import cpu_has_bf16
from conf.models import CONFIG
from conf.schema.commands import ModelConfig
from conf.terminal import listed

logging.disable_progress_bar()
# What old files store beside the weights, and transformers computes again.
TABLES = ("masked_bias", "inv_freq", "position_ids", "num_batches_tracked")
NAMED = 4  # tensors that a message names before it counts the rest


def load(folder: Path, config: ModelConfig) -> tuple[PreTrainedModel, Any]:
    """The model and its tokenizer. Without a GPU or bf16 units it computes in float32."""
    wide = not torch.cuda.is_available() and not cpu_has_bf16()
    with reading(folder):
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32 if wide else "auto",
            use_safetensors=True,
            trust_remote_code=config.trust_remote_code,
            output_loading_info=True,
        )
    refuse_misfits(folder, info)
    if wide:
        _widen(model)
    with reading(f"{folder}: the tokenizer cannot be loaded"):
        tokenizer = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=config.trust_remote_code
        )
    return model, tokenizer


def refuse_misfits(folder: Path, info: dict[str, Any]) -> None:
    """Raises where loading left a parameter without its weights, or weights without a place."""
    shapes = [
        f"{name} ({_times(found)}, {_times(expected)} is expected)"
        for name, found, expected in sorted(info["mismatched_keys"])
    ]
    unexpected = sorted(name for name in info["unexpected_keys"] if not name.endswith(TABLES))
    faults = (
        ("has other shapes than config.json says", shapes),
        ("lacks weights that config.json asks for", sorted(info["missing_keys"])),
        ("holds tensors that config.json has no place for", unexpected),
        ("cannot be loaded", [str(message) for message in info["error_msgs"]]),
    )
    for what, names in faults:
        if names:
            raise bad_input(f"{folder}: {what}: {listed(names, NAMED)}")


def _times(shape: Any) -> str:
    return " x ".join(str(size) for size in shape) or "one number"


def empty_model(folder: Path, trust_remote_code: bool) -> Any:
    """The architecture without weights and without its quantization: plain linear layers."""
    with reading(folder / CONFIG):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
        if hasattr(config, KEY):
            delattr(config, KEY)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)


def check_finite(model: PreTrainedModel) -> None:
    """Refuses a model with a weight that is no number: every step would spread it."""
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            raise bad_input(f"the original's {name} holds NaN or infinite values")


def check_usable(model: PreTrainedModel, tokenizer: Any, folder: Path, prompt: str) -> None:
    """Asks the original for one token and writes its small files to a scratch folder, as is done
    with the finished checkpoint: what cannot work then is known before the calibration."""
    rows = model.get_input_embeddings().weight.shape[0]
    highest = max(tokenizer.get_vocab().values(), default=0)
    if highest >= rows:
        raise bad_input(
            f"{folder}: the tokenizer has a token {highest}, the embedding {rows} rows; they do "
            "not belong together"
        )
    with reading(f"{folder}: the original cannot be asked prompt={prompt!r}"):
        inputs = encoded(tokenizer, prompt).to(model.device)
        with torch.no_grad():
            logits = model(**inputs).logits
        answer(model, tokenizer, prompt, tokens=1)
    if not torch.isfinite(logits).all():
        raise bad_input(
            f"{folder}: the original computes NaN or infinite values; are config.json's norms, "
            "positions and activation right, and its weights within reason?"
        )
    with tempfile.TemporaryDirectory() as scratch, reading(folder), writing(scratch):
        model.config.save_pretrained(scratch)
        if model.generation_config is not None:
            model.generation_config.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)


def _widen(model: PreTrainedModel) -> None:
    """NVFP4 unpacks to bf16 whatever type was asked for: unpacked now, and then widened."""
    quantizer = getattr(model, "hf_quantizer", None)
    if quantizer is not None and _has_nvfp4(quantizer.compressor.quantization_config):
        quantizer.compressor.decompress_model(model)
    for parameter in model.parameters():
        if parameter.dtype in (torch.bfloat16, torch.float16):
            parameter.data = parameter.data.float()


def _has_nvfp4(config: QuantizationConfig) -> bool:
    quantization = read_quantization(config.model_dump(mode="json"), KEY)
    groups = quantization.groups if quantization is not None else []
    return any(format_of(group) is nvfp4.FORMAT for group in groups)


def answer(model: PreTrainedModel, tokenizer: Any, prompt: str, tokens: int = 32) -> str:
    """The model's greedy answer to a prompt, in its chat format where it has one."""
    inputs = encoded(tokenizer, prompt).to(model.device)
    output = model.generate(**inputs, max_new_tokens=tokens, do_sample=False)
    new = output[0, inputs["input_ids"].shape[1] :]
    return str(tokenizer.decode(new, skip_special_tokens=True)).strip()


def encoded(tokenizer: Any, prompt: str) -> Any:
    """The prompt's tokens, as a chat of one turn where the tokenizer knows a chat format."""
    if not tokenizer.chat_template:
        return tokenizer(prompt, return_tensors="pt")
    turn = [{"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    return tokenizer(text, add_special_tokens=False, return_tensors="pt")
