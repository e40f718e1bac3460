"""The finished layers of a run, saved on disk until the checkpoint is published."""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from compressed_tensors.offload import disable_onloading, update_offload_parameter
from pydantic import BaseModel, ConfigDict
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from conf.errors import environment_reason, writing
from conf.files.write_whole import write_whole
from quantize.steps.base.changes import Errors

Modules = dict[str, torch.nn.Module]
Tensors = dict[str, torch.Tensor]
KEY = "key.json"
NOTES = "notes"
WORK_FORMAT = 5  # raise it when the saved files change
CALIBRATION_VERSION = 6  # raise it when a pass or a solver gives other bits than before
LAYER_FILE = re.compile(r"step(\d+)-layer\d+\.safetensors")


class LayerNotes(BaseModel):
    """The record of a finished layer, saved beside its weights."""

    model_config = ConfigDict(ser_json_inf_nan="constants")  # keeps NaN and infinite errors

    errors: Errors
    fallbacks: list[str]
    """Modules that GPTQ could only round."""
    expert_tokens: dict[str, list[int]] = {}
    """Calibration tokens of each expert, by the name of the layer's experts."""


class WorkFolder:
    """Saves the state of each finished layer; a later step's state replaces the earlier one's.

    The key identifies the run: another model, recipe or text starts over. A layer file that cannot
    be read counts as not finished.
    """

    def __init__(self, folder: Path, key: Mapping[str, object], is_read_only: bool = False) -> None:
        """`is_read_only`: another process of the run writes the folder."""
        self.folder, self._is_read_only = folder, is_read_only
        if is_read_only:
            return
        key_text = json.dumps(key, sort_keys=True)
        with writing(folder):
            if not _has_text(folder / KEY, key_text):
                _remove(folder)
                folder.mkdir(parents=True)
                _write(folder / KEY, lambda path: path.write_text(key_text))

    def _file(self, step: int, layer: int) -> Path:
        return self.folder / f"step{step}-layer{layer:04}.safetensors"

    def has(self, step: int, layer: int) -> bool:
        """Whether the layer went through the step, or through a later one."""
        return self._latest(step, layer) is not None

    def fits(self, step: int, layer: int, modules: Modules) -> bool:
        """Whether the saved layer is complete and can be loaded into its modules."""
        path = self._latest(step, layer)
        return path is not None and _matches_modules(path, modules)

    def start_over(self) -> None:
        """Removes every saved layer."""
        for path in self.folder.glob("step*"):
            _remove(path)

    def _latest(self, step: int, layer: int) -> Path | None:
        by_step = {
            _step_number(path): path for path in self.folder.glob(f"step*-layer{layer:04}.*")
        }
        steps_done = [
            step_number
            for step_number in by_step
            if step_number is not None and step_number >= step
        ]
        return by_step[max(steps_done)] if steps_done else None

    def write(self, step: int, layer: int, tensors: Tensors, notes: LayerNotes) -> None:
        """Writes a layer atomically, then removes the files of earlier steps."""
        if self._is_read_only:
            return
        metadata = {NOTES: notes.model_dump_json()}
        with writing(self.folder):
            _write(
                self._file(step, layer), lambda path: save_file(tensors, path, metadata=metadata)
            )
        for earlier in range(step):
            self._file(earlier, layer).unlink(missing_ok=True)

    def load(self, step: int, layer: int, modules: Modules) -> LayerNotes:
        """Loads the saved state into the layer's modules; returns its notes."""
        path = self._latest(step, layer)
        assert path is not None
        notes, tensors = _read(path)
        for name, module in modules.items():
            for tensor_name, _ in _direct_tensors(module):
                if f"{name}.{tensor_name}" in tensors:
                    update_offload_parameter(module, tensor_name, tensors[f"{name}.{tensor_name}"])
        return notes

    def record(self, name: str) -> str | None:
        """The text that an earlier run recorded under this name; None without one."""
        try:
            return (self.folder / name).read_text()
        except (OSError, UnicodeDecodeError):
            return None

    def write_record(self, name: str, text: str) -> None:
        """Records a text for a later run of the same key."""
        with writing(self.folder):
            _write(self.folder / name, lambda path: path.write_text(text))

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def host_tensors(modules: Modules) -> Tensors:
    """The layer's tensors in host memory, by name. They are not copied where they are there
    already, so a later change of the layer changes them."""
    return {
        f"{name}.{tensor_name}": tensor.detach().cpu().contiguous()
        for name, module in modules.items()
        for tensor_name, tensor in _direct_tensors(module)
    }


def _direct_tensors(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """The module's own tensors. Those of an offloaded module are read where they are kept: every
    update writes there, too."""
    with disable_onloading():
        return [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]


def _step_number(path: Path) -> int | None:
    """The step number in the name of a layer file; None for another file."""
    match = LAYER_FILE.fullmatch(path.name)
    return int(match[1]) if match else None


def _has_text(file: Path, text: str) -> bool:
    try:
        return file.read_text() == text
    except (OSError, UnicodeDecodeError):
        return False


def _remove(path: Path) -> None:
    """Removes a file, link or folder, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _read(path: Path) -> tuple[LayerNotes, dict[str, torch.Tensor]]:
    with safe_open(path, "pt") as file:
        notes = LayerNotes.model_validate_json(file.metadata()[NOTES])
        return notes, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def _matches_modules(path: Path, modules: Modules) -> bool:
    """Whether each weight is present and finite, and every tensor has its module's shape and type.
    Scales are not checked for finite values: a later step fills them."""
    if not path.is_file():
        return False
    try:
        _, tensors = _read(path)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        if environment_reason(error):
            raise
        return False
    for name, module in modules.items():
        for tensor_name, tensor in _direct_tensors(module):
            saved = tensors.get(f"{name}.{tensor_name}")
            if tensor_name in ("weight", "bias") and (
                saved is None or not torch.isfinite(saved).all()
            ):
                return False
            if saved is not None and (saved.shape != tensor.shape or saved.dtype != tensor.dtype):
                return False
    return True


def _write(path: Path, write: Callable[[Path], object]) -> None:
    with write_whole(path) as unfinished:
        write(unfinished)
