"""The product of 1 to 16 tokens with vector-quantized weights, in CUDA C++.

A look-up of a codebook gives VECTOR weights of one column. `ldmatrix` takes an address of 16 bytes
from each lane and hands out the transposed 8x8 matrices that a tensor core wants. So 32 random
look-ups in shared memory are one instruction, and they serve up to 16 tokens. The main and the
residual vector are not added: each has its own product, summed in float32.

With one token, a row of A holds the activations of one step: 8 steps of 32 columns are in the
registers of one load of 16 bytes. A step's product is right in its own row of the sums only.

The time of one token, in cycles of a multiprocessor for a step of 32 pairs of look-ups: 4 T for
main entries, where T is the mean number of turns in which eight of them are read (see
`vptq_layout`), 4 for residual entries, 1.4 for indices and activations. The residual codebook is
there COPIES times, one for each place in a group of eight lanes, so that its entries never meet.
Tensor cores need about 6.5 cycles, instructions 6.7. Before that there is a fixed time, in which
codebooks are copied: 64 KiB take half a microsecond. Programmatic dependent launch hides the start,
and the copies, too, where shared memory and registers have room for a block of the next kernel.

Microseconds on an H200, measured with activations loaded for every step, residual copies read from
L2, at most two main copies and no overlap (20.6 cycles, 18 with copies), and as the model predicts
now, with 1.98 GHz:

| to | from | codebooks | T | fixed | before | now | torch |
|---|---|---|---|---|---|---|---|
| 4096 | 1024 | 4096, 256 | 2.16 | 2.0 | 5.5 | 2.9 | 5.2 |
| 4096 | 1024 | 8192, 512 | 2.16 | 2.9 | 7.1 | 3.8 | 5.2 |
| 4096 | 4096 | 4096, 512 | 2.16 | 2.7 | 10.8 | 6.3 | 13.2 |
| 14336 | 4096 | 8192, 256 | 1.77 | 3.2 | 25.1 | 14.5 | 30.1 |
| 53248 | 16384 | 4096, 256 | 1.08 | 3.2 | 235 | 130 | 416 |

`@NAME@` are filled in by `source`. `vptq_layout` describes the order of the indices.
"""

from dataclasses import dataclass

from serve.kernels.products.cuda_kernels.vptq_fragments import FRAGMENTS
from serve.kernels.products.cuda_kernels.vptq_instructions import INSTRUCTIONS, WIDENED
from serve.kernels.products.cuda_kernels.vptq_source import SOURCE

NAME = "vptq_few_tokens"
STEP = 256
"""Columns that a warp takes at a time: 8 steps of 32 look-ups."""
NONE, SHARED, DIRECT = 0, 1, 2
"""Where a codebook is: there is none, in shared memory, or gathered from L2 when needed."""


@dataclass(frozen=True)
class Variant:
    """What a kernel is compiled for."""

    warps: int
    tokens: int
    """Room for tokens: 1, 8 or 16."""
    tail: int
    """Bytes of an index beyond its first two: 0, 1 or 2."""
    vector: int
    main: int
    """SHARED or DIRECT."""
    residual: int
    copies: int
    """Of the residual codebook in shared memory."""
    norm: bool
    """Columns have scales and biases."""
    dtype: str
    """bf16 or f16."""
    swaps: bool = False
    """Indices tell whether two steps are swapped: see `vptq_layout`."""
    resident: int = 1
    """Blocks that a multiprocessor has room for. The second one is the next kernel's, which copies
    its codebooks before this one has ended."""

    @property
    def grid_blocks(self) -> int:
        """Blocks of this kernel for each multiprocessor: codebooks are copied once."""
        return 1 if SHARED in (self.main, self.residual) else self.resident

    @property
    def ahead(self) -> int:
        """Blocks of columns that indices are loaded before their turn: as registers allow."""
        return 1 if self.warps * self.resident > 16 else 2

    @property
    def sets(self) -> int:
        """Sets of sums. Steps of one token take them in turns, as many as registers allow; of more
        tokens, main and residual have one each."""
        return 4 if self.tokens == 1 and self.warps * self.resident <= 16 else 2

    def source(self) -> str:
        values = {
            "WARPS": self.warps, "TOKENS": self.tokens, "TAIL": self.tail, "VECTOR": self.vector,
            "MAIN": self.main, "RESIDUAL": self.residual, "COPIES": self.copies,
            "NORM": "true" if self.norm else "false", "INSTRUCTIONS": INSTRUCTIONS,
            "FRAGMENTS": FRAGMENTS,
            "TYPE": self.dtype, "WIDE": WIDENED[self.dtype], "BLOCKS": self.resident,
            "AHEAD": self.ahead, "SETS": self.sets, "SWAPS": int(self.swaps),
        }  # fmt: skip
        text = SOURCE
        for name, value in values.items():
            text = text.replace(f"@{name}@", str(value))
        return text

    def shared_bytes(self, mains: int, residuals: int) -> int:
        """Dynamic shared memory of a block."""
        books = mains * 16 if self.main == SHARED else 0
        books += residuals * self.copies * 16 if self.residual == SHARED else 0
        staged = [self.main, self.residual].count(DIRECT) * self.warps * STEP * 16
        return books + staged + 2 * self.warps * self.tokens * 8 * 4
