"""Writes a model as a compressed checkpoint."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.offload import dispatch_model
from transformers import PreTrainedModel

from conf.files.json_files import read_object
from conf.formats.quantization_config import KEY
from conf.models import CONFIG, read_config
from quantize.checkpoint.rounding import rounded_in_float32
from quantize.models.headers import read_headers
from quantize.models.mixtures import with_routers
from quantize.models.source import TORCH_DTYPES
from quantize.models.source_config import stated_dtype
from quantize.recipe_file import make_readable
from quantize.vptq.attached import to_stored
from quantize.vptq.linear import stored_config

SHARD_SIZE = "4GB"


def save(model: PreTrainedModel, tokenizer: Any, folder: Path, dtype: torch.dtype) -> None:
    """Writes the compressed checkpoint; tensors that are not quantized get the original's dtype."""
    to_stored(model, dtype)
    for module in model.modules():
        if getattr(module, "quantization_scheme", None) is not None:
            continue
        for parameter in module.parameters(recurse=False):
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(dtype)
    model.config.dtype = dtype
    with rounded_in_float32():
        model.save_pretrained(folder, save_compressed=True, max_shard_size=SHARD_SIZE)
    _complete_quantization(folder / CONFIG, model)
    tokenizer.save_pretrained(folder)
    make_readable(folder)
    _make_readable_by_all(folder)


def _complete_quantization(path: Path, model: PreTrainedModel) -> None:
    """Adds to config.json what compressed-tensors does not write: a format that it does not know,
    and the routers of a mixture of experts."""
    content = read_object(path)
    written = content.get(KEY)
    quantization = stored_config(model)
    if not quantization and isinstance(written, dict):
        quantization = with_routers(written, model)
    if quantization and quantization != written:
        content[KEY] = quantization
        path.write_text(json.dumps(content, indent=2, sort_keys=True))


def _make_readable_by_all(folder: Path) -> None:
    """Sets the usual file modes. safetensors writes files that only their owner can read; a server
    often runs as another user."""
    mask = os.umask(0)
    os.umask(mask)
    for path in folder.iterdir():
        path.chmod(0o666 & ~mask)


def on_device(model: PreTrainedModel) -> None:
    """Puts the model on the GPU if there is one; calibration leaves it on the host."""
    if torch.cuda.is_available():
        dispatch_model(model)


def source_dtype(folder: Path) -> torch.dtype:
    """The dtype that config.json names; if it names none, that of most weights."""
    stated = stated_dtype(read_config(folder))
    return TORCH_DTYPES[stated or read_headers(folder).dominant_dtype]
