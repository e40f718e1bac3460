"""Reads a checkpoint's safetensors files and what compressed-tensors stores in them."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from conf.errors import bad_input

INDEX = "model.safetensors.index.json"


class CheckpointTensors:
    """The tensors of a folder by name, read one at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = ExitStack()
        self._files: dict[str, Any] = {}
        for path in _shards(folder):
            try:
                file = self._stack.enter_context(safe_open(path, "pt"))
            except (SafetensorError, OSError) as error:
                raise bad_input(f"{path}: cannot be read ({error})") from error
            for name in file.keys():  # noqa: SIM118
                if name in self._files:
                    raise bad_input(f"{path}: {name} stands in two files")
                self._files[name] = file

    def __enter__(self) -> "CheckpointTensors":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._files[name].get_tensor(name)
        return tensor

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._files[name].get_slice(name).get_shape())


def _shards(folder: Path) -> list[Path]:
    found = sorted(folder.glob("*.safetensors"))
    if not found:
        raise bad_input(f"{folder}: there are no .safetensors files")
    index = folder / INDEX
    if index.is_file():
        listed = set(json.loads(index.read_text())["weight_map"].values())
        present = {path.name for path in found}
        for name in sorted(listed ^ present):
            where = "missing" if name in listed else "not in the index"
            raise bad_input(f"{index}: {name} is {where}")
    return found


def unpack_integers(packed: torch.Tensor, bits: int, columns: int) -> torch.Tensor:
    """The integers of an int32 tensor that holds several a word, the first in the lowest bits.

    compressed-tensors adds half the range before packing; it is taken off again.
    """
    words = packed.to(torch.int64) & 0xFFFFFFFF
    per_word = 32 // bits
    shifts = torch.arange(per_word) * bits
    values = (words.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)
    return values.flatten(-2)[..., :columns] - (1 << (bits - 1))


def breaks_2_of_4(weights: torch.Tensor) -> int:
    """Groups of four along the rows that hold fewer than two zeros."""
    zeros = (weights.reshape(-1, 4) == 0).sum(dim=1)
    return int((zeros < 2).sum())
