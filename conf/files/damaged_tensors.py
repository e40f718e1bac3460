"""Names what is wrong with a safetensors file that the safetensors library refuses.

It reads headers by hand, as only `tensor_rows` does beside it: the library's error names neither
the tensor nor the bytes that are missing, and gives no byte offsets.
"""

import math
import struct
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from conf.errors import bad_input
from conf.files.json_files import parse_object, shown, validated
from conf.files.stored_tensor import ELEMENT_BITS

METADATA = "__metadata__"
HEADER_LENGTH = 8
LARGEST_HEADER = 100_000_000
Count = Annotated[int, Field(ge=0, lt=2**62)]


class _Entry(BaseModel):
    """One tensor in a header."""

    model_config = ConfigDict(strict=True, extra="forbid")
    dtype: str
    shape: Annotated[list[Count], Field(max_length=8)]
    data_offsets: Annotated[list[Count], Field(min_length=2, max_length=2)]


def raise_damage(path: Path) -> None:
    """Raises for the first fault of a file's header; returns where it has none."""
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            start = file.read(HEADER_LENGTH)
            is_complete = len(start) == HEADER_LENGTH
            length = struct.unpack("<Q", start)[0] if is_complete else LARGEST_HEADER
            if length >= min(size, LARGEST_HEADER):
                raise bad_input(f"{path}: is not a complete .safetensors file ({size} bytes)")
            header = file.read(length).decode("utf-8")
    except UnicodeDecodeError as error:
        raise bad_input(f"{path}: its header is damaged (no UTF-8)") from error
    content = parse_object(header, f"{path}: its header is damaged")
    content.pop(METADATA, None)
    entries = {
        name: validated(_Entry, entry, f"{path}: its header is damaged: {shown(name)}")
        for name, entry in content.items()
    }
    _check_layout(path, entries, size, HEADER_LENGTH + length)


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
        raise bad_input(f"{path}: has {size - start - end} bytes after its last tensor")
