"""What tensors a model folder holds, read from the headers of its files, without torch."""

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path

from conf.errors import bad_input
from conf.models import SHAPES

INDEX = "model.safetensors.index.json"
HEADER_LENGTH = 8
LARGEST_HEADER = 100_000_000
PLAIN = ("BF16", "F16", "F32")
ELEMENT_BITS = {
    "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16,
    "I16": 16, "U16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I8": 8, "U8": 8, "BOOL": 8,
}  # fmt: skip


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
        """As an engine holds it: plain numbers as wide as it computes, all others as stored."""
        return self.count * width if self.dtype in PLAIN else self.bytes


def tensors(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a folder; complains by name about a file that is cut short or missing."""
    if (folder / SHAPES).is_file():
        shapes = json.loads((folder / SHAPES).read_text())
        return {name: Tensor(dtype, tuple(shape)) for name, (dtype, shape) in shapes.items()}
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise bad_input(f"{folder}: there are no .safetensors files")
    found: dict[str, Tensor] = {}
    owners: dict[str, str] = {}
    for path in files:
        for name, tensor in _header(path).items():
            found[name] = tensor
            owners[name] = path.name
    _check_index(folder, owners)
    return found


def _header(path: Path) -> dict[str, Tensor]:
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(HEADER_LENGTH)
        length = struct.unpack("<Q", start)[0] if len(start) == HEADER_LENGTH else LARGEST_HEADER
        if length >= min(size, LARGEST_HEADER):
            raise bad_input(f"{path}: is no whole .safetensors file ({size} bytes)")
        try:
            content = json.loads(file.read(length))
            content.pop("__metadata__", None)
            end = max((entry["data_offsets"][1] for entry in content.values()), default=0)
            parts = {
                name: Tensor(entry["dtype"], tuple(entry["shape"]))
                for name, entry in content.items()
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise bad_input(f"{path}: its header is damaged ({error})") from error
    needed = HEADER_LENGTH + length + end
    if size < needed:
        raise bad_input(f"{path}: is cut short, {size} of {needed} bytes are there")
    return parts


def _check_index(folder: Path, owners: dict[str, str]) -> None:
    """An index names each tensor's file; one left over from another export does not fit."""
    path = folder / INDEX
    if not path.is_file():
        return
    try:
        listed: dict[str, str] = json.loads(path.read_text())["weight_map"]
    except (ValueError, KeyError) as error:
        raise bad_input(f"{path}: is no index of tensors ({error})") from error
    for name, file in listed.items():
        if not (folder / file).is_file():
            raise bad_input(f"{path}: names {file}, which is not there")
        if owners.get(name) != file:
            raise bad_input(f"{path}: says that {name} is in {file}, which it is not")
    for name in owners:
        if name not in listed:
            raise bad_input(f"{path}: does not list {name}, which is in {owners[name]}")
