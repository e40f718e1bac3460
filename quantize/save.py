"""Writes a checkpoint beside its place and moves it there whole, so that none is ever half."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.offload import dispatch_model
from transformers import PreTrainedModel

from conf.errors import bad_input, world_fault

SHARD_SIZE = "4GB"


def destination(output_dir: str, model: str, recipe: str, replace: bool) -> Path:
    """The checkpoint's folder; stops where one exists that may not be replaced."""
    folder = Path(output_dir).expanduser() / model / recipe
    if folder.exists() and not replace:
        raise bad_input(f"{folder}: exists already; replace=true makes it anew")
    return folder


@contextmanager
def published_whole(folder: Path) -> Iterator[Path]:
    """A folder to fill; it takes the place of `folder` only once the block ends well."""
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        unfinished.mkdir(parents=True)
        yield unfinished
        _swap(unfinished, folder)
    except OSError as error:
        raise world_fault(f"{folder}: could not be written ({error})") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _swap(unfinished: Path, folder: Path) -> None:
    old = folder.with_name(f".{folder.name}.replaced")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.replace(old)
    unfinished.replace(folder)
    shutil.rmtree(old, ignore_errors=True)


def save(model: PreTrainedModel, tokenizer: Any, folder: Path, dtype: torch.dtype) -> None:
    """Writes the compressed checkpoint; what is not quantized gets the original's number type."""
    for module in model.modules():
        if getattr(module, "quantization_scheme", None) is not None:
            continue
        for parameter in module.parameters(recurse=False):
            parameter.data = parameter.data.to(dtype)
    model.config.dtype = dtype
    model.save_pretrained(folder, save_compressed=True, max_shard_size=SHARD_SIZE)
    tokenizer.save_pretrained(folder)
    _readable(folder)


def _readable(folder: Path) -> None:
    """safetensors writes files for their owner alone; a server often runs as another user."""
    mask = os.umask(0)
    os.umask(mask)
    for path in folder.iterdir():
        path.chmod(0o666 & ~mask)


def on_device(model: PreTrainedModel) -> None:
    """Puts the model on the GPU where there is one; calibrating leaves it on the host."""
    if torch.cuda.is_available():
        dispatch_model(model)


def quantized_modules(model: PreTrainedModel) -> int:
    """Modules whose weights are stored in a recipe's format."""
    schemes = [getattr(module, "quantization_scheme", None) for module in model.modules()]
    return sum(scheme is not None and scheme.weights is not None for scheme in schemes)


def source_dtype(folder: Path) -> torch.dtype:
    """The number type that the original is stored in."""
    config = json.loads((folder / "config.json").read_text())
    name = config.get("dtype") or config.get("torch_dtype") or "bfloat16"
    return getattr(torch, name)
