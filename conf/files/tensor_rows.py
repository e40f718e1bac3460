"""Reads some rows of a stored tensor as bytes. The safetensors library reads no FP8 without torch,
which is not imported here."""

import json
import struct
from pathlib import Path

from conf.files.damaged_tensors import HEADER_LENGTH
from conf.files.stored_tensor import Tensor


def middle_rows(path: Path, name: str, tensor: Tensor, most: int) -> bytes:
    """Up to `most` neighbouring rows from the middle of a tensor [rows, columns] of a file whose
    header was read, and so checked, before."""
    rows = tensor.shape[0]
    row_bytes = tensor.bytes // rows
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(HEADER_LENGTH))
        begin, _ = json.loads(file.read(length))[name]["data_offsets"]
        first = max(0, rows - most) // 2
        file.seek(HEADER_LENGTH + length + int(begin) + first * row_bytes)
        return file.read(min(most, rows) * row_bytes)
