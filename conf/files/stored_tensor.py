"""The type and shape of a tensor in a safetensors file."""

import math
from dataclasses import dataclass

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
        """Bytes in an engine: plain numbers have its own type's width, others are as stored."""
        return self.count * width if self.dtype in PLAIN else self.bytes
