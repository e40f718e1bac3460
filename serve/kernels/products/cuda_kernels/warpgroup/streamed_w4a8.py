"""How the kernel of `w4a8_source` is cut and filled in."""

from dataclasses import dataclass

from serve.kernels.products.cuda_kernels import instructions
from serve.kernels.products.cuda_kernels.streaming import STEP, TILE
from serve.kernels.products.cuda_kernels.warpgroup.instructions import (
    instructions as group_instructions,
)
from serve.kernels.products.cuda_kernels.warpgroup.w4a8_source import SOURCE

NAME = "streamed_w4a8"
ARCHITECTURE = "90a"
WARPS_OF_GROUP = 4
WIDEST = 64
"""Tokens of one product: more would need too many registers."""
SLOTS = 4
CODE_BYTES, SCALE_BYTES = 1024, 32
"""Of a warp's step."""
SPARE_ROWS = 4
"""Behind a token's sums: the sums of neighbours then are in different banks."""


@dataclass(frozen=True)
class Variant:
    """What a kernel is compiled for."""

    groups: int
    """Groups of four warps, with 64 rows each."""
    copiers: int
    """Warps that copy activations."""
    stages: int
    """Pairs of steps of a warp's weights that are under way."""
    split: int
    """Blocks that share columns: 1, 2, 4 or 8."""
    team: int
    """Blocks with the same columns that load activations for each other: 1 or 2."""
    tokens: int
    """Room for so many: a multiple of 16."""
    dtype: str
    """Of results: bf16 or f16."""
    scale_dtype: str

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
        return min(self.tokens, WIDEST // 2 if self.moves_registers else WIDEST)

    def shared_bytes(self, tokens: int, steps: int) -> int:
        """Dynamic shared memory of a block: barriers, and both rings, whose place sums take."""
        share = -(-steps // self.split)
        barriers = -(-(2 * SLOTS + self.warps * self.stages) * 8 // 128) * 128
        codes = self.warps * (self.stages * 2 * CODE_BYTES + share * SCALE_BYTES)
        sums = tokens * (self.rows + SPARE_ROWS) * 4
        return barriers + max(SLOTS * self.tokens * STEP + codes, sums)

    def source(self) -> str:
        blocks = self.split * self.team
        cluster = f"__cluster_dims__({blocks}, 1, 1)" if blocks > 1 else ""
        values = {
            "INSTRUCTIONS": instructions.INSTRUCTIONS,
            "GROUP_INSTRUCTIONS": group_instructions(self.tokens // self.pieces),
            "WARPS": self.warps, "COPIERS": self.copiers, "STAGES": self.stages, "SLOTS": SLOTS,
            "TOKENS": self.tokens, "PIECES": self.pieces, "SPLIT": self.split,
            "TEAM": self.team,
            "BFLOAT_SCALES": str(self.scale_dtype == "bf16").lower(),
            "MOVES_REGISTERS": str(self.moves_registers).lower(), "HELD": self.held,
            "CLUSTER": cluster, "TYPE": self.dtype,
        }  # fmt: skip
        text = SOURCE
        for name, value in values.items():
            text = text.replace(f"@{name}@", str(value))
        return text
