"""Loads a model for quantizing, in a dtype that this machine computes in."""

import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging

from conf.errors import bad_input, reading, writing
from conf.formats.quantization_config import KEY
from conf.models import CONFIG, read_config
from conf.schema.model import ModelConfig
from conf.terminal import listed
from quantize.models.experts import linear_experts
from quantize.models.float32 import convert_to_float32, is_slow_in_bf16
from quantize.vptq.loading import exact_loading

logging.disable_progress_bar()
# Buffers that old files store beside the weights, and that transformers computes again.
COMPUTED_BUFFERS = ("masked_bias", "inv_freq", "position_ids", "num_batches_tracked")
MOST_NAMED = 4  # tensors that a message names before it counts the rest


def load(folder: Path, config: ModelConfig) -> tuple[PreTrainedModel, Any]:
    """The model and its tokenizer. Without a GPU or bf16 units it computes in float32."""
    in_float32 = is_slow_in_bf16()
    with reading(folder), exact_loading(), linear_experts(model_type(folder)):
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32 if in_float32 else "auto",
            use_safetensors=True,
            trust_remote_code=config.trust_remote_code,
            output_loading_info=True,
        )
    refuse_misfits(folder, info)
    if in_float32:
        convert_to_float32(model)
    with reading(f"{folder}: the tokenizer cannot be loaded"):
        tokenizer = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=config.trust_remote_code
        )
    return model, tokenizer


def model_type(folder: Path) -> str:
    """The family that config.json names."""
    return str(read_config(folder).get("model_type"))


def refuse_misfits(folder: Path, info: dict[str, Any]) -> None:
    """Raises if a parameter found no weights, or weights found no parameter."""
    wrong_shapes = [
        f"{name} ({_shape_text(stored_shape)}, {_shape_text(expected_shape)} is expected)"
        for name, stored_shape, expected_shape in sorted(info["mismatched_keys"])
    ]
    unexpected = sorted(
        name for name in info["unexpected_keys"] if not name.endswith(COMPUTED_BUFFERS)
    )
    faults = (
        ("has other shapes than config.json says", wrong_shapes),
        ("lacks weights that config.json asks for", sorted(info["missing_keys"])),
        ("holds tensors that config.json does not describe", unexpected),
        ("cannot be loaded", [str(message) for message in info["error_msgs"]]),
    )
    for problem, names in faults:
        if names:
            raise bad_input(f"{folder}: {problem}: {listed(names, MOST_NAMED)}")


def _shape_text(shape: Any) -> str:
    return " x ".join(str(size) for size in shape) or "one number"


def empty_model(folder: Path, trust_remote_code: bool) -> Any:
    """The architecture without weights and without its quantization: plain linear layers."""
    with reading(folder / CONFIG):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
        if hasattr(config, KEY):
            delattr(config, KEY)
        with torch.device("meta"), linear_experts(config.model_type):
            return AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)


def check_finite(model: PreTrainedModel) -> None:
    """Refuses a model with NaN or infinite weights: every step would spread them."""
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            raise bad_input(f"the original's {name} holds NaN or infinite values")


def check_usable(model: PreTrainedModel, tokenizer: Any, folder: Path, prompt: str) -> None:
    """Generates one token and saves the small files to a scratch folder, as for the finished
    checkpoint, so that a failure there is known before the calibration."""
    rows = model.get_input_embeddings().weight.shape[0]
    highest_token = max(tokenizer.get_vocab().values(), default=0)
    if highest_token >= rows:
        raise bad_input(
            f"{folder}: the tokenizer has a token {highest_token}, the embedding {rows} rows; they "
            "do not belong together"
        )
    with reading(f"{folder}: the original cannot be asked prompt={prompt!r}"):
        inputs = encoded(tokenizer, prompt).to(model.device)
        with torch.no_grad():
            logits = model(**inputs).logits
        answer(model, tokenizer, prompt, tokens=1)
    if not torch.isfinite(logits).all():
        raise bad_input(
            f"{folder}: the original computes NaN or infinite values; check config.json's norms, "
            "positions and activation, and the size of the weights"
        )
    with tempfile.TemporaryDirectory() as scratch, reading(folder), writing(scratch):
        model.config.save_pretrained(scratch)
        if model.generation_config is not None:
            model.generation_config.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)


def answer(model: PreTrainedModel, tokenizer: Any, prompt: str, tokens: int = 32) -> str:
    """The model's greedy answer to a prompt, in its chat format if it has one."""
    inputs = encoded(tokenizer, prompt).to(model.device)
    output = model.generate(**inputs, max_new_tokens=tokens, do_sample=False)
    new_tokens = output[0, inputs["input_ids"].shape[1] :]
    return str(tokenizer.decode(new_tokens, skip_special_tokens=True)).strip()


def encoded(tokenizer: Any, prompt: str) -> Any:
    """The prompt's tokens, as a chat of one message if the tokenizer has a chat template."""
    if not tokenizer.chat_template:
        return tokenizer(prompt, return_tensors="pt")
    messages = [{"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return tokenizer(text, add_special_tokens=False, return_tensors="pt")
