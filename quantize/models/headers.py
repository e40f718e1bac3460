"""The headers of the safetensors files that transformers would load from a source folder."""

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import safe_open

from conf.errors import bad_input, reading
from conf.files.json_files import check_regular, read_object, shown, validated
from conf.files.stored_tensor import PLAIN, Tensor
from conf.files.tensor_files import INDEX, SUFFIX, Index, read_header

if TYPE_CHECKING:  # this module is imported before anything heavy
    import torch

SINGLE = f"model{SUFFIX}"
ADAPTER = "adapter_config.json"  # transformers would follow it to another model


@dataclass(frozen=True)
class Headers:
    """The type and shape of each tensor, and the file that holds it."""

    tensors: dict[str, Tensor]
    owners: dict[str, Path]

    @property
    def dominant_dtype(self) -> str:
        """The dtype of most bytes of weights."""
        sizes: Counter[str] = Counter()
        for tensor in self.tensors.values():
            if tensor.dtype in PLAIN:
                sizes[tensor.dtype] += tensor.bytes
        return sizes.most_common(1)[0][0] if sizes else "BF16"


def read_headers(folder: Path) -> Headers:
    """Reads every header; raises for files that are truncated, missing or contradictory.

    Files that the index does not name are ignored, as transformers ignores them: some models
    come with a second copy of their weights in another layout.
    """
    if (folder / ADAPTER).exists():
        raise bad_input(f"{folder / ADAPTER}: an adapter cannot be quantized; merge it first")
    index = _weight_map(folder)
    tensors: dict[str, Tensor] = {}
    owners: dict[str, Path] = {}
    for path in _weight_files(folder, index):
        for name, tensor in read_header(path).items():
            if name in owners:
                raise bad_input(f"{path}: {name} is in {owners[name].name}, too")
            tensors[name], owners[name] = tensor, path
    if not tensors:
        raise bad_input(f"{folder}: the weight files hold no tensors")
    if index is not None:
        _check_index(folder / INDEX, index, owners)
    return Headers(tensors, owners)


def _weight_map(folder: Path) -> dict[str, str] | None:
    path = folder / INDEX
    if not path.exists() and not path.is_symlink():
        return None
    index: Index = validated(Index, read_object(path), str(path))
    return index.weight_map


def _weight_files(folder: Path, index: dict[str, str] | None) -> list[Path]:
    names = sorted(set(index.values())) if index else [SINGLE]
    for name in names:
        if Path(name).name != name or not name.endswith(SUFFIX) or not name.isprintable():
            raise bad_input(f"{folder / INDEX}: the shard {shown(name)} lies outside the folder")
        if not (folder / name).exists() and index:
            raise bad_input(f"{folder / INDEX}: the shard {shown(name)} is missing")
    if index and SINGLE not in names and (folder / SINGLE).exists():
        raise bad_input(
            f"{folder}: there are {SINGLE} and {INDEX}, which names other files; remove the one "
            "that is out of date"
        )
    for name in names:
        check_regular(folder / name)
    return [folder / name for name in names]


def _check_index(path: Path, index: dict[str, str], owners: dict[str, Path]) -> None:
    for name, file in index.items():
        if name not in owners or owners[name].name != file:
            raise bad_input(f"{path}: says that {shown(name)} is in {file}, but it is not")
    for name, owner in owners.items():
        if name not in index:
            raise bad_input(f"{path}: does not list {name}, which is in {owner.name}")


class StoredTensors:
    """The tensors of a folder by name, read one at a time."""

    def __init__(self, folder: Path) -> None:
        self._owners = read_headers(folder).owners
        self._stack = ExitStack()
        self._files: dict[Path, Any] = {}

    def __enter__(self) -> "StoredTensors":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __contains__(self, name: str) -> bool:
        return name in self._owners

    def __getitem__(self, name: str) -> "torch.Tensor":
        path = self._owners[name]
        if path not in self._files:
            with reading(path):
                self._files[path] = self._stack.enter_context(safe_open(path, "pt"))
        tensor: torch.Tensor = self._files[path].get_tensor(name)
        return tensor

    def under(self, prefix: str) -> list[str]:
        """Tensor names that begin with a prefix."""
        return [name for name in self._owners if name.startswith(prefix)]
