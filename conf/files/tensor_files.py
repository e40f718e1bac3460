"""Which tensors a folder's safetensors files hold, from their headers alone."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from safetensors import SafetensorError, safe_open

from conf.errors import bad_input, one_line
from conf.files.damaged_tensors import raise_damage
from conf.files.json_files import (
    JsonObject,
    check_regular,
    read_object,
    shown,
    shown_path,
    validated,
)
from conf.files.stored_tensor import ELEMENT_BITS, Tensor

INDEX = "model.safetensors.index.json"
SUFFIX = ".safetensors"


class Index(BaseModel):
    """`model.safetensors.index.json`."""

    model_config = ConfigDict(strict=True)
    weight_map: Annotated[dict[str, str], Field(min_length=1)]
    metadata: JsonObject | None = None


@dataclass(frozen=True)
class TensorFiles:
    """The tensors of a folder, and the file of each."""

    tensors: dict[str, Tensor]
    owners: dict[str, Path]
    """The file of each tensor."""
    files: list[Path]


def tensor_files(folder: Path) -> TensorFiles:
    """Reads every header; raises for files that are truncated, missing or contradictory."""
    files = weight_files(folder)
    tensors: dict[str, Tensor] = {}
    owners: dict[str, Path] = {}
    for path in files:
        for name, tensor in read_header(path).items():
            if name in owners:
                raise bad_input(f"{path}: {name} is in {owners[name].name}, too")
            tensors[name], owners[name] = tensor, path
    stored = TensorFiles(tensors, owners, files)
    check_index(folder, stored)
    return stored


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder, each a plain file of it."""
    if not folder.is_dir():
        raise bad_input(f"{shown_path(folder)}: is no folder")
    files = sorted(folder.glob(f"*{SUFFIX}"))
    if not files:
        raise bad_input(f"{shown_path(folder)}: there are no {SUFFIX} files")
    for path in files:
        if not path.name.isprintable() or shown_path(path) != str(path):
            raise bad_input(
                f"{shown_path(path)}: the file name has characters that cannot be printed"
            )
        check_regular(path)
    return files


def read_header(path: Path) -> dict[str, Tensor]:
    """The tensors of one file. safetensors refuses a damaged file, but does not name the tensor or
    the missing bytes; `raise_damage` does."""
    try:
        with safe_open(path, "np") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            tensors = {
                name: Tensor(stored.get_dtype(), tuple(stored.get_shape()))
                for name, stored in slices.items()
            }
    except PermissionError as error:  # without the number of the system's own error
        raise bad_input(f"{path}: cannot be read (permission denied)") from error
    except SafetensorError as error:
        raise_damage(path)
        raise bad_input(f"{path}: its header is damaged ({one_line(error)})") from error
    for name, tensor in tensors.items():
        if tensor.dtype not in ELEMENT_BITS:
            raise bad_input(f"{path}: {name} has the unknown type {shown(tensor.dtype)}")
    return tensors


def check_index(folder: Path, stored: TensorFiles) -> None:
    """Raises where the index is not of these files, as one left over from another export."""
    path = folder / INDEX
    if not path.exists() and not path.is_symlink():
        return
    index = validated(Index, read_object(path), str(path))
    file_names = {file.name for file in stored.files}
    for name, file in index.weight_map.items():
        if file not in file_names:
            raise bad_input(f"{path}: names {shown(file)[1:-1]}, which is not there")
        if name not in stored.owners or stored.owners[name].name != file:
            raise bad_input(f"{path}: says that {name} is in {file}, but it is not")
    for name, owner in stored.owners.items():
        if name not in index.weight_map:
            raise bad_input(f"{path}: does not list {name}, which is in {owner.name}")
    for file in sorted(file_names - set(index.weight_map.values())):
        raise bad_input(f"{path}: does not name {file}, which is in the folder")


def wrong_total(folder: Path, stored: TensorFiles) -> str | None:
    """The fault of an index with a wrong total of bytes; None without a fault. Engines do not
    read that number and some published originals have a wrong one: only verification checks it."""
    path = folder / INDEX
    if not path.is_file():
        return None
    total = (validated(Index, read_object(path), str(path)).metadata or {}).get("total_size")
    stored_bytes = sum(tensor.bytes for tensor in stored.tensors.values())
    if total is None or (type(total) in (int, float) and total == stored_bytes):
        return None
    return f"{INDEX}: metadata.total_size is {shown(total)}, the tensors have {stored_bytes} bytes"
