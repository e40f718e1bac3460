"""How weights, activations and the KV cache are quantized, in config.json and in recipes."""

import math
from dataclasses import dataclass, field

INT, FLOAT, VECTOR = "int", "float", "vector"
STATIC, DYNAMIC, LOCAL = "static", "dynamic", "local"
EXPONENT_SCALES = "e8m0"  # scales that are powers of two
GROUPED = ("group", "tensor_group")


@dataclass(frozen=True)
class Codebooks:
    """How vectors of weights are stored: as numbers of entries in codebooks. A vector lies in one
    column; its weights belong to neighbouring rows."""

    vector_length: int
    entries: int
    """Entries of the main codebook, a power of two."""
    residual_entries: int = 0
    """Entries of the codebook of what the main one leaves; 0 without one."""
    groups: int = 1
    """Runs of columns, each with its own codebooks."""
    outlier_columns: int = 0
    """Columns with a codebook of their own."""
    outlier_vector_length: int = 0
    outlier_entries: int = 0
    has_scales: bool = True
    """Whether each column has a scale and an offset."""
    has_order: bool = False
    """Whether the columns are stored in another order than the layer's."""

    @property
    def index_bits(self) -> int:
        """Bits of the two numbers of a vector, which are stored side by side."""
        return (self.entries - 1).bit_length() + self.residual_bits

    @property
    def residual_bits(self) -> int:
        return (self.residual_entries - 1).bit_length() if self.residual_entries else 0

    @property
    def bits(self) -> float:
        """Bits of a weight, without its share of the codebooks."""
        return self.index_bits / self.vector_length

    def group_columns(self, columns: int) -> int:
        """Columns of one group."""
        return (columns - self.outlier_columns) // self.groups


@dataclass(frozen=True)
class QuantArgs:
    """How one kind of tensor is quantized."""

    type: str
    """int, float or vector; empty where another tool's config does not say it."""
    bits: int
    """Bits of a value; 0 where another tool's config does not say it."""
    strategy: str
    """What shares a scale: tensor, channel, group, tensor_group, block, token or attn_head."""
    group_size: int | None = None
    block_structure: list[int] | None = None
    symmetric: bool = True
    scales: str = STATIC
    """static: stored; dynamic: computed from each token; local: both (NVFP4)."""
    scale_type: str | None = None
    """fp8, or another type's name; null for the model's own."""
    codebooks: Codebooks | None = None
    """Of vectors; null for int and float."""

    @property
    def dynamic(self) -> bool | str:
        """The same as `scales`, as compressed-tensors and recipes spell it."""
        return LOCAL if self.scales == LOCAL else self.scales == DYNAMIC

    @property
    def number(self) -> str:
        """The number type and its width, as int8."""
        return f"{self.type}{self.bits}"


def vector_args(codebooks: Codebooks) -> QuantArgs:
    """The arguments of weights in codebooks."""
    return QuantArgs(VECTOR, math.ceil(codebooks.bits), "tensor", codebooks=codebooks)


@dataclass(frozen=True)
class QuantGroup:
    """Modules that are quantized alike."""

    name: str
    """The key in config_groups; the quant_method where another tool wrote the config."""
    weights: QuantArgs | None
    activations: QuantArgs | None = None
    targets: list[str] = field(default_factory=list)
    """Module classes or `re:` patterns."""
    format: str = ""
    """How the tensors are stored: the group's own spelling, otherwise the config's."""
    own_format: str = ""
    """The group's own spelling; empty where only the config has one."""

    @property
    def is_head(self) -> bool:
        """Whether the group is the output head."""
        return any("lm_head" in target for target in self.targets)


@dataclass(frozen=True)
class QuantizationConfig:
    """The `quantization_config` of a config.json, of compressed-tensors or of another tool."""

    method: str | None
    groups: list[QuantGroup]
    format: str = ""
    status: str = ""
    """compressed in a finished checkpoint."""
    ignore: list[str] = field(default_factory=list)
    """Modules or `re:` patterns that no group applies to."""
    kv_cache: QuantArgs | None = None
    sparsity: str | None = None
    """`sparsity_config.format`; null without a sparsity_config."""
