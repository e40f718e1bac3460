"""Reads a checkpoint's safetensors files, and unpacks what compressed-tensors stores in them."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from conf.errors import bad_input
from conf.files.stored_tensor import Tensor
from conf.files.tensor_files import INDEX, tensor_files

__all__ = [
    "INDEX",
    "CheckpointTensors",
    "breaks_2_of_4",
    "checking_device",
    "unpack_fp4",
    "unpack_integers",
]

FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def checking_device() -> str:
    """Where values are compared and checked: the GPU, if there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


class CheckpointTensors:
    """The tensors of a folder by name, read one at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stored = tensor_files(folder)
        self._stack = ExitStack()
        self._files: dict[Path, Any] = {}
        for path in self.stored.files:
            try:
                self._files[path] = self._stack.enter_context(safe_open(path, "pt"))
            except (SafetensorError, OSError) as error:
                raise bad_input(f"{path}: cannot be read ({error})") from error

    def __enter__(self) -> "CheckpointTensors":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __contains__(self, name: object) -> bool:
        return name in self.stored.tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored.tensors)

    def __getitem__(self, name: str) -> torch.Tensor:
        path = self.stored.owners[name]
        try:
            tensor: torch.Tensor = self._files[path].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise bad_input(f"{path}: {name} cannot be read ({error})") from error
        return tensor

    def header(self, name: str) -> Tensor:
        """Type and shape, without reading values."""
        return self.stored.tensors[name]

    def shape(self, name: str) -> tuple[int, ...]:
        return self.stored.tensors[name].shape


def unpack_integers(packed: torch.Tensor, bits: int, columns: int) -> torch.Tensor:
    """The integers of an int32 tensor that holds several in a word, the first in the lowest bits.

    Values of 3, 5, 6 or 7 bits may continue in the next word. compressed-tensors adds half the
    range before packing; it is subtracted again.
    """
    words = packed.to(torch.int64) & 0xFFFFFFFF
    starts = torch.arange(columns, device=packed.device) * bits
    index, shift = starts // 32, starts % 32
    values = words[..., index] >> shift
    if 32 % bits:
        following = words[..., (index + 1).clamp(max=words.shape[-1] - 1)]
        values |= following << (32 - shift)
    return (values & ((1 << bits) - 1)) - (1 << (bits - 1))


def unpack_fp4(packed: torch.Tensor) -> torch.Tensor:
    """The FP4 (E2M1) numbers of a uint8 tensor with two in a byte, the first in the low bits."""
    values = [*FP4_VALUES, *(-value for value in FP4_VALUES)]
    table = torch.tensor(values, device=packed.device)
    codes = torch.stack([packed & 0x0F, packed >> 4], dim=-1)
    return table[codes.flatten(-2).to(torch.int64)]


def breaks_2_of_4(weights: torch.Tensor) -> int:
    """Groups of four along the rows that hold fewer than two zeros."""
    zeros = (weights.reshape(-1, 4) == 0).sum(dim=1)
    return int((zeros < 2).sum())
