"""Finished layers of a run, kept on disk until the checkpoint is published."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.offload import update_offload_parameter
from safetensors import safe_open
from safetensors.torch import save_file

Modules = dict[str, torch.nn.Module]
Notes = dict[str, Any]
KEY = "key.json"
NOTES = "notes"


class WorkFolder:
    """Keeps the state of each finished layer; a later step's state takes the earlier one's place.

    The key says what the run was: another model, recipe or text starts over.
    """

    def __init__(self, folder: Path, key: dict[str, Any]) -> None:
        self.folder = folder
        wanted = json.dumps(key, sort_keys=True)
        if not (folder / KEY).is_file() or (folder / KEY).read_text() != wanted:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            _write(folder / KEY, lambda path: path.write_text(wanted))

    def _file(self, step: int, layer: int) -> Path:
        return self.folder / f"step{step}-layer{layer:04}.safetensors"

    def has(self, step: int, layer: int) -> bool:
        """Whether the layer went through the step, or through a later one."""
        return self._latest(step, layer) is not None

    def _latest(self, step: int, layer: int) -> Path | None:
        found = sorted(self.folder.glob(f"step*-layer{layer:04}.safetensors"))
        later = [path for path in found if int(path.name[4:].split("-")[0]) >= step]
        return later[-1] if later else None

    def save(self, step: int, layer: int, modules: Modules, notes: Notes) -> None:
        """Writes a layer whole, then forgets what the earlier step left of it."""
        tensors = {
            f"{name}.{part}": tensor.detach().cpu().contiguous()
            for name, module in modules.items()
            for part, tensor in _own_tensors(module)
        }
        metadata = {NOTES: json.dumps(notes)}
        _write(self._file(step, layer), lambda path: save_file(tensors, path, metadata=metadata))
        for earlier in range(step):
            self._file(earlier, layer).unlink(missing_ok=True)

    def load(self, step: int, layer: int, modules: Modules) -> Notes:
        """Puts the saved state back into the layer's modules; returns what was noted of it."""
        path = self._latest(step, layer)
        assert path is not None
        with safe_open(path, "pt") as file:
            notes: Notes = json.loads(file.metadata()[NOTES])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        for name, module in modules.items():
            for part, _ in _own_tensors(module):
                if f"{name}.{part}" in tensors:
                    update_offload_parameter(module, part, tensors[f"{name}.{part}"])
        return notes

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _own_tensors(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]


def _write(path: Path, write: Any) -> None:
    unfinished = path.with_name(f".{path.name}")
    write(unfinished)
    os.replace(unfinished, path)  # noqa: PTH105
