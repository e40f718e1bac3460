"""Which tensors a folder's safetensors files hold, from their headers alone."""

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from conf.errors import bad_input
from conf.files.json_files import (
    JsonObject,
    check_regular,
    parse_object,
    read_object,
    shown,
    shown_path,
    validated,
)

INDEX = "model.safetensors.index.json"
SUFFIX = ".safetensors"
METADATA = "__metadata__"
HEADER_LENGTH = 8
LARGEST_HEADER = 100_000_000
PLAIN = ("BF16", "F16", "F32")
ELEMENT_BITS = {
    "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16,
    "I16": 16, "U16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I8": 8, "U8": 8, "BOOL": 8,
}  # fmt: skip
Count = Annotated[int, Field(ge=0, lt=2**62)]


@dataclass(frozen=True)
class Tensor:
    """Type and shape of one stored tensor."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.count * ELEMENT_BITS[self.dtype] // 8

    def held_bytes(self, width: int) -> int:
        """Bytes in an engine: plain numbers have its own type's width, others are as stored."""
        return self.count * width if self.dtype in PLAIN else self.bytes


class _Entry(BaseModel):
    """One tensor in a header."""

    model_config = ConfigDict(strict=True, extra="forbid")
    dtype: str
    shape: Annotated[list[Count], Field(max_length=8)]
    data_offsets: Annotated[list[Count], Field(min_length=2, max_length=2)]


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
                raise bad_input(f"{path}: {name} stands in {owners[name].name}, too")
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
            raise bad_input(f"{shown_path(path)}: the name of a weight file is plain text")
        check_regular(path)
    return files


def read_header(path: Path) -> dict[str, Tensor]:
    """The tensors of one file."""
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            start = file.read(HEADER_LENGTH)
            is_complete = len(start) == HEADER_LENGTH
            length = struct.unpack("<Q", start)[0] if is_complete else LARGEST_HEADER
            if length >= min(size, LARGEST_HEADER):
                raise bad_input(f"{path}: is no whole .safetensors file ({size} bytes)")
            header = file.read(length).decode("utf-8")
    except UnicodeDecodeError as error:
        raise bad_input(f"{path}: its header is damaged (no UTF-8)") from error
    except PermissionError as error:
        raise bad_input(f"{path}: cannot be read ({error.strerror})") from error
    content = parse_object(header, f"{path}: its header is damaged")
    content.pop(METADATA, None)
    entries = {
        name: validated(_Entry, entry, f"{path}: its header is damaged: {shown(name)}")
        for name, entry in content.items()
    }
    _check_layout(path, entries, size, HEADER_LENGTH + length)
    return {name: Tensor(entry.dtype, tuple(entry.shape)) for name, entry in entries.items()}


def _check_layout(path: Path, entries: dict[str, _Entry], size: int, start: int) -> None:
    """Raises where the tensors leave gaps in the file, or one has not the bytes of its shape."""
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        first, last = entry.data_offsets
        if entry.dtype not in ELEMENT_BITS:
            raise bad_input(f"{path}: {name} has the unknown type {shown(entry.dtype)}")
        expected_bytes = math.prod(entry.shape) * ELEMENT_BITS[entry.dtype] // 8
        if first != end or last - first != expected_bytes:
            raise bad_input(
                f"{path}: its header is damaged: {name} lies at {first} to {last}, "
                f"{end} to {end + expected_bytes} is expected"
            )
        end = last
    if size < start + end:
        raise bad_input(f"{path}: is cut short, {size} of {start + end} bytes are there")
    if size > start + end:
        raise bad_input(f"{path}: has {size - start - end} bytes behind its last tensor")


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
            raise bad_input(f"{path}: says that {name} is in {file}, which it is not")
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
