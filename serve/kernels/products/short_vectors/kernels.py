"""Kernels of vectors of four weights in one codebook: what they are compiled for.

A look-up of 8 bytes gives four weights of one column. A lane uses them as they are: in the tensor
cores' product, a column of A is not a column of the weight but one output of a vector in it, and a
row of A has the activations of one token at one of the four outputs. So a fragment of 16 rows holds
4 tokens; 8 and 16 tokens take 2 and 4 products for the same look-up.

Scales of columns are applied once, when a block copies its activations into shared memory. Layers
that share their input (q, k and v; gate and up) are one launch: each has blocks of its own.

The time of a tile (4,096 weights), in cycles of a multiprocessor: 64 T for 32 look-ups, T being the
turns in which 16 lanes read their entries (see `layout`); 2 for the activations of one token, 16
for each 4 tokens otherwise; 13 for numbers of 13 bits. Instructions take 7 x 32 / 4 = 56, and 4
more for each look-up and 4 tokens. So a decoder layer of Qwen3-8B (47,100 tiles) with T = 2 takes
47,100 / 132 x 143 cycles, or 28 us at 1.8 GHz, and the start and the end of four kernels. Its
numbers are 78 MB: 18 us of the memory's time.
"""

from dataclasses import dataclass

from serve.kernels.products.cuda_kernels.vptq_fragments import NORMED
from serve.kernels.products.cuda_kernels.vptq_instructions import INSTRUCTIONS, WIDENED
from serve.kernels.products.short_vectors.layout import ENTRY_BYTES, own_copies
from serve.kernels.products.short_vectors.source import SOURCE
from serve.kernels.products.short_vectors.unpack_source import SCALED, UNPACK

NAME, UNPACK_NAME = "vptq_short_vectors", "vptq_short_unpack"
TOKENS_OF_FRAGMENT = 4
FLOAT_BYTES, HALF_BYTES = 4, 2
SHIFTS = 32
"""Sums of columns' biases, for all warps that share a token."""
PADDING = 64
"""Bytes after the activations of a token."""


@dataclass(frozen=True)
class ShortVariant:
    """What a kernel is compiled for."""

    warps: int
    fragments: int
    """Of 4 tokens each: 1, 2 or 4."""
    bits: int
    """Of a number."""
    entries: int
    copies: int
    """Of an entry, that numbers choose from."""
    norm: bool
    """Columns have scales and biases."""
    dtype: str
    """bf16 or f16."""
    resident: int = 1
    """Blocks that registers of a multiprocessor have room for: the second one is the next
    kernel's."""

    @property
    def sums_of_token(self) -> int:
        """Room for the 32 sums of a tile and a token, so that tokens differ in their banks; with 16
        tokens, 4,096 columns just fit beside them."""
        return 34 if self.fragments < 4 else 33

    @property
    def book_bytes(self) -> int:
        return self.entries * self.copies * own_copies(self.entries) * ENTRY_BYTES

    def shared_bytes(self, tokens: int, staged: int) -> int:
        """Dynamic shared memory of a block that has so many columns of activations at a time."""
        room = self.fragments * TOKENS_OF_FRAGMENT
        buffers = 2 if self.fragments == 1 else 1
        sums = buffers * self.warps * (room * self.sums_of_token + 1) + SHIFTS
        return self.book_bytes + tokens * (staged * HALF_BYTES + PADDING) + sums * FLOAT_BYTES

    def source(self) -> str:
        return self._filled(SOURCE, NORMED)

    def unpack_source(self) -> str:
        return self._filled(UNPACK.replace("extern", SCALED.lstrip() + "extern", 1))

    def _filled(self, source: str, functions: str = "") -> str:
        values = {
            "INSTRUCTIONS": INSTRUCTIONS, "WARPS": self.warps, "FRAGMENTS": self.fragments,
            "BITS": self.bits, "ENTRIES": self.entries, "COPIES": self.copies,
            "OWN": own_copies(self.entries), "NORM": "true" if self.norm else "false",
            "RESIDENT": self.resident, "FRAGMENT_FUNCTIONS": functions, "TYPE": self.dtype,
            "WIDE": WIDENED[self.dtype], "OF_TOKEN": self.sums_of_token,
        }  # fmt: skip
        for name, value in values.items():
            source = source.replace(f"@{name}@", str(value))
        return source
