"""Finished layers of a run, kept on disk until the checkpoint is published."""

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from compressed_tensors.offload import update_offload_parameter
from pydantic import BaseModel, ConfigDict
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from conf.errors import environment_reason, writing
from quantize.steps.base.changes import Errors

Modules = dict[str, torch.nn.Module]
KEY = "key.json"
NOTES = "notes"
WORK_FORMAT = 3  # raise it when layers are kept differently
KEPT = re.compile(r"step(\d+)-layer\d+\.safetensors")


class LayerNotes(BaseModel):
    """What is kept of a layer beside its weights."""

    model_config = ConfigDict(ser_json_inf_nan="constants")  # an error that is not finite stays so

    errors: Errors
    fallbacks: list[str]
    """Modules that could only be rounded."""


class WorkFolder:
    """Keeps the state of each finished layer; a later step's state takes the earlier one's place.

    The key says what the run was: another model, recipe or text starts over. A layer that cannot
    be read again counts as not finished.
    """

    def __init__(self, folder: Path, key: Mapping[str, object]) -> None:
        self.folder = folder
        wanted = json.dumps(key, sort_keys=True)
        with writing(folder):
            if not _is_same(folder / KEY, wanted):
                _clear(folder)
                folder.mkdir(parents=True)
                _write(folder / KEY, lambda path: path.write_text(wanted))

    def _file(self, step: int, layer: int) -> Path:
        return self.folder / f"step{step}-layer{layer:04}.safetensors"

    def has(self, step: int, layer: int) -> bool:
        """Whether the layer went through the step, or through a later one."""
        return self._latest(step, layer) is not None

    def fits(self, step: int, layer: int, modules: Modules) -> bool:
        """Whether what is kept of the layer is whole, and can be put back into its modules."""
        path = self._latest(step, layer)
        return path is not None and _fits(path, modules)

    def start_over(self) -> None:
        """Forgets every kept layer."""
        for path in self.folder.glob("step*"):
            _clear(path)

    def _latest(self, step: int, layer: int) -> Path | None:
        by_step = {_step_of(path): path for path in self.folder.glob(f"step*-layer{layer:04}.*")}
        later = [number for number in by_step if number is not None and number >= step]
        return by_step[max(later)] if later else None

    def save(self, step: int, layer: int, modules: Modules, notes: LayerNotes) -> None:
        """Writes a layer whole, then forgets what the earlier step left of it."""
        tensors = {
            f"{name}.{part}": tensor.detach().cpu().contiguous()
            for name, module in modules.items()
            for part, tensor in _own_tensors(module)
        }
        metadata = {NOTES: notes.model_dump_json()}
        with writing(self.folder):
            _write(
                self._file(step, layer), lambda path: save_file(tensors, path, metadata=metadata)
            )
        for earlier in range(step):
            self._file(earlier, layer).unlink(missing_ok=True)

    def load(self, step: int, layer: int, modules: Modules) -> LayerNotes:
        """Puts the saved state back into the layer's modules; returns what was noted of it."""
        path = self._latest(step, layer)
        assert path is not None
        notes, tensors = _read(path)
        for name, module in modules.items():
            for part, _ in _own_tensors(module):
                if f"{name}.{part}" in tensors:
                    update_offload_parameter(module, part, tensors[f"{name}.{part}"])
        return notes

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _own_tensors(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]


def _step_of(path: Path) -> int | None:
    """The step's number in a kept layer's name; none for another file."""
    kept = KEPT.fullmatch(path.name)
    return int(kept[1]) if kept else None


def _is_same(file: Path, wanted: str) -> bool:
    try:
        return file.read_text() == wanted
    except (OSError, UnicodeDecodeError):
        return False


def _clear(path: Path) -> None:
    """Removes what is there, of whatever kind."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _read(path: Path) -> tuple[LayerNotes, dict[str, torch.Tensor]]:
    with safe_open(path, "pt") as file:
        notes = LayerNotes.model_validate_json(file.metadata()[NOTES])
        return notes, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def _fits(path: Path, modules: Modules) -> bool:
    """Each weight is there and finite, every tensor has its module's shape and type. Scales that a
    later step fills are whatever the memory held."""
    if not path.is_file():
        return False
    try:
        _, tensors = _read(path)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        if environment_reason(error):
            raise
        return False
    for name, module in modules.items():
        for part, tensor in _own_tensors(module):
            kept = tensors.get(f"{name}.{part}")
            if part in ("weight", "bias") and (kept is None or not torch.isfinite(kept).all()):
                return False
            if kept is not None and (kept.shape != tensor.shape or kept.dtype != tensor.dtype):
                return False
    return True


def _write(path: Path, write: Callable[[Path], object]) -> None:
    unfinished = path.with_name(f".{path.name}")
    write(unfinished)
    os.replace(unfinished, path)  # noqa: PTH105
