"""Loads a model for quantizing, in a number type that this machine computes in."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging

from conf.errors import bad_input
from conf.hardware import cpu_has_bf16
from conf.schema import ModelConfig

logging.disable_progress_bar()


def load(folder: Path, config: ModelConfig) -> tuple[PreTrainedModel, Any]:
    """The model and its tokenizer. Without a GPU or bf16 units it computes in float32."""
    wide = not torch.cuda.is_available() and not cpu_has_bf16()
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.float32 if wide else "auto",
        use_safetensors=True,
        trust_remote_code=config.trust_remote_code,
    )
    if wide:
        _widen(model)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=config.trust_remote_code
        )
    except (OSError, ValueError) as error:
        raise bad_input(f"{folder}: the tokenizer cannot be loaded ({error})") from error
    return model, tokenizer


def empty_model(folder: Path, trust_remote_code: bool) -> Any:
    """The architecture without weights and without its quantization: plain linear layers."""
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    except ValueError as error:
        raise bad_input(f"{folder / 'config.json'}: {' '.join(str(error).split())}") from error


def check_finite(model: PreTrainedModel) -> None:
    """Refuses a model with a weight that is no number: every step would spread it."""
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            raise bad_input(f"the original's {name} holds NaN or infinite values")


def _widen(model: PreTrainedModel) -> None:
    """NVFP4 unpacks to bf16 whatever type was asked for: unpacked now, and then widened."""
    quantizer = getattr(model, "hf_quantizer", None)
    if quantizer is not None and "nvfp4" in str(model.config.quantization_config):
        quantizer.compressor.decompress_model(model)
    for parameter in model.parameters():
        if parameter.dtype in (torch.bfloat16, torch.float16):
            parameter.data = parameter.data.float()


def answer(model: PreTrainedModel, tokenizer: Any, prompt: str, tokens: int = 32) -> str:
    """The model's greedy answer to a prompt, in its chat format where it has one."""
    if tokenizer.chat_template:
        turn = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        inputs = tokenizer(text, add_special_tokens=False, return_tensors="pt")
    else:
        inputs = tokenizer(prompt, return_tensors="pt")
    inputs = inputs.to(model.device)
    output = model.generate(**inputs, max_new_tokens=tokens, do_sample=False)
    new = output[0, inputs["input_ids"].shape[1] :]
    return str(tokenizer.decode(new, skip_special_tokens=True)).strip()
