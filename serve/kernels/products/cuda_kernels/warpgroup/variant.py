"""How the kernel of `source` is cut and filled in."""

from dataclasses import dataclass

from serve.kernels.products.cuda_kernels import instructions
from serve.kernels.products.cuda_kernels.streaming import SPARE_ROWS, STEP, TILE
from serve.kernels.products.cuda_kernels.warpgroup.instructions import (
    instructions as group_instructions,
)
from serve.kernels.products.cuda_kernels.warpgroup.numbers import (
    EIGHT_BIT_PRODUCTS,
    EIGHT_BITS,
    SIXTEEN_BIT_PRODUCTS,
    SIXTEEN_BITS,
)
from serve.kernels.products.cuda_kernels.warpgroup.source import SOURCE

NAME = "streamed_batch"
ARCHITECTURE = "90a"
WARPS_OF_GROUP = 4
WIDEST = 64
"""Tokens of one product: more would need too many registers."""
SLOTS = 4
STAGE_BYTES = 2048
"""Of a warp's weights: two steps of INT4, one of INT8."""
FP8 = "e4m3"


@dataclass(frozen=True)
class Numbers:
    """What is multiplied."""

    x: str
    """Type of activations: e4m3, bf16 or f16."""
    out: str
    """Type of results: bf16 or f16."""
    scales: str
    """Type of groups' scales."""
    bits: int = 4
    """Of a weight; with e4m3 4 only."""
    groups: int = 1
    """Of a step: 1; with 16-bit activations also 2, or 0 for a scale for each row."""
    zeros: bool = False

    @property
    def x_bytes(self) -> int:
        return 1 if self.x == FP8 else 2

    @property
    def scale_bytes(self) -> int:
        """Of a warp's step, with zero points."""
        return 32 * self.groups * (2 if self.zeros else 1)


@dataclass(frozen=True)
class Variant:
    """What a kernel is compiled for."""

    groups: int
    """Groups of four warps, with 64 rows each."""
    copiers: int
    """Warps that copy activations: one or two for each slot."""
    stages: int
    """Parts of a warp's weights that are under way: two or more, as a part is requested after the
    next one was waited for."""
    split: int
    """Blocks that share columns: 1, 2, 4 or 8."""
    team: int
    """Blocks with the same columns that load activations for each other: 1, 2 or 4."""
    tokens: int
    """Room for so many: 16, 32, 64, or 128 of 8 bits."""
    numbers: Numbers

    @property
    def warps(self) -> int:
        """Without copiers."""
        return self.groups * WARPS_OF_GROUP

    @property
    def threads(self) -> int:
        return (self.warps + self.copiers) * 32

    @property
    def rows(self) -> int:
        return self.warps * TILE

    @property
    def pieces(self) -> int:
        """Products for all tokens."""
        return -(-self.tokens // WIDEST)

    @property
    def moves_registers(self) -> bool:
        """Whether copiers give registers to the other warps, which would not have enough."""
        return self.pieces > 1 and self.groups > 2

    @property
    def held(self) -> int:
        """Tokens whose activations of a step a copier holds at once."""
        most = (WIDEST // 2 if self.moves_registers else WIDEST) // self.numbers.x_bytes
        return min(self.tokens * SLOTS // self.copiers, most)

    def shared_bytes(self, tokens: int, steps: int) -> int:
        """Dynamic shared memory of a block: barriers, and both rings, whose place sums take."""
        share = -(-steps // self.split)
        barriers = -(-(2 * SLOTS + self.warps * self.stages) * 8 // 128) * 128
        codes = self.warps * (self.stages * STAGE_BYTES + share * self.numbers.scale_bytes)
        sums = tokens * (self.rows + SPARE_ROWS) * 4
        activations = SLOTS * self.tokens * STEP * self.numbers.x_bytes
        return barriers + max(activations + codes, sums)

    def source(self) -> str:
        blocks, numbers = self.split * self.team, self.numbers
        cluster = f"__cluster_dims__({blocks}, 1, 1)" if blocks > 1 else ""
        values = {
            "INSTRUCTIONS": instructions.INSTRUCTIONS,
            "GROUP_INSTRUCTIONS": group_instructions(self.tokens // self.pieces, numbers.x),
            "NUMBERS": EIGHT_BITS if numbers.x == FP8 else SIXTEEN_BITS,
            "PRODUCTS": EIGHT_BIT_PRODUCTS if numbers.x == FP8 else SIXTEEN_BIT_PRODUCTS,
            "WARPS": self.warps, "COPIERS": self.copiers, "STAGES": self.stages, "SLOTS": SLOTS,
            "TOKENS": self.tokens, "PIECES": self.pieces, "SPLIT": self.split,
            "TEAM": self.team, "BITS": numbers.bits, "GROUPS": numbers.groups,
            "X_BYTES": numbers.x_bytes, "ZEROS": str(numbers.zeros).lower(),
            "BFLOAT": str(numbers.x == "bf16").lower(),
            "BFLOAT_SCALES": str(numbers.scales == "bf16").lower(),
            "MOVES_REGISTERS": str(self.moves_registers).lower(), "HELD": self.held,
            "CLUSTER": cluster, "TYPE": numbers.out,
        }  # fmt: skip
        text = SOURCE
        for name, value in values.items():
            text = text.replace(f"@{name}@", str(value))
        return text
