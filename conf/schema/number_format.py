"""How weights and activations are stored, as options of a recipe."""

from dataclasses import dataclass, field

from conf.formats.quant_args import (
    DYNAMIC,
    EXPONENT_SCALES,
    GROUPED,
    LOCAL,
    STATIC,
    VECTOR,
    Codebooks,
    QuantArgs,
    vector_args,
)
from conf.schema.ranges import choices, within

NUMBER_TYPES = ("int", "float", "vector")
STRATEGIES = ("tensor", "channel", "group", "tensor_group", "block", "token")
SCALE_TYPES = ("fp8", EXPONENT_SCALES)


@dataclass
class CodebookFormat:
    """How vectors of weights are stored: as numbers of codebook entries."""

    vector_length: int = field(default=8, metadata=within(2, 64))
    """Weights of a vector: neighbouring rows of one column."""
    entries: int = field(default=4096, metadata=within(2, 65536))
    """Entries of the main codebook, a power of two."""
    residual_entries: int = field(default=4096, metadata=within(0, 65536))
    """Entries of the codebook for what the main one leaves, a power of two; 0 without one."""

    @property
    def stored(self) -> Codebooks:
        """The same, for the checks of what engines run."""
        return Codebooks(self.vector_length, self.entries, self.residual_entries)


@dataclass
class NumberFormat:
    """How one kind of tensor is stored: weights or activations."""

    type: str = field(default="int", metadata=choices(*NUMBER_TYPES))
    """int, float or vector (weights in codebooks)."""
    bits: int = field(default=8, metadata=within(2, 8))
    """Bits for a value; those of a vector follow from its codebooks."""
    strategy: str = field(default="channel", metadata=choices(*STRATEGIES))
    """What shares a scale: tensor, channel, group, tensor_group, block or token."""
    group_size: int | None = field(default=None, metadata=within(1, 65536))
    """Columns that share a scale, for the group strategies."""
    block_structure: list[int] | None = field(default=None, metadata=within(1, 65536))
    """Rows and columns that share a scale, for strategy block."""
    symmetric: bool = True
    """Without a zero point."""
    dynamic: bool = False
    """Scales computed for each token (activations); for tensor_group, those of the groups."""
    scale_type: str | None = field(default=None, metadata=choices(*SCALE_TYPES))
    """Number type of the scales: fp8, e8m0 (powers of two), or null for the model's own."""
    codebooks: CodebookFormat | None = None
    """The codebooks of vectors."""

    def check(self, option: str) -> None:
        """Raises where the fields contradict each other."""
        if (self.type == VECTOR) != (self.codebooks is not None):
            raise ValueError(
                f"{option}.type={self.type}: type {VECTOR} needs codebooks, and no other has them"
            )
        if self.type == VECTOR and self.strategy != "tensor":
            raise ValueError(
                f"{option}.strategy={self.strategy}: vectors of a tensor share their codebooks; "
                "use strategy: tensor"
            )
        if (self.strategy in GROUPED) != (self.group_size is not None):
            raise ValueError(
                f"{option}.strategy={self.strategy} with group_size={self.group_size}: "
                f"strategy {' or '.join(GROUPED)} needs a group size, and no other has one"
            )
        if (self.strategy == "block") != (self.block_structure is not None):
            raise ValueError(
                f"{option}.strategy={self.strategy} with block_structure={self.block_structure}: "
                "strategy block needs a block structure, and no other has one"
            )
        if self.block_structure is not None and len(self.block_structure) != 2:
            raise ValueError(
                f"{option}.block_structure={self.block_structure}: give rows and columns, "
                "as [128, 128]"
            )

    @property
    def _scales(self) -> str:
        if self.dynamic and self.strategy == "tensor_group":
            return LOCAL
        return DYNAMIC if self.dynamic else STATIC

    @property
    def stored(self) -> QuantArgs:
        """The same as QuantArgs, for the checks of what engines run."""
        if self.codebooks is not None:
            return vector_args(self.codebooks.stored)
        return QuantArgs(
            self.type,
            self.bits,
            self.strategy,
            self.group_size,
            self.block_structure,
            self.symmetric,
            self._scales,
            self.scale_type,
        )
