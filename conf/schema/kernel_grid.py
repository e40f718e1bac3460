"""Options of the benchmark of single kernels."""

from dataclasses import dataclass, field

from omegaconf import MISSING

from conf.schema.load import GpuConfig
from conf.schema.model import ModelConfig
from conf.schema.ranges import TOKENS_MOST, above, choices, not_empty, within

VPTQ, LINEAR = "vptq", "linear"
GRIDS = (VPTQ, LINEAR)
FORMATS = ("int8", "fp8", "int4", "sparse_int8", "sparse_fp8")
VECTORS = (4, 8)
VPTQ_TOKENS = 16
"""The most tokens of the product by look-ups."""


@dataclass
class KernelGridConfig:
    """Times kernels one by one beside torch's product in bf16: with a cold and with a warm cache,
    in CUDA graphs, each checked against float64. Writes a row for each, and tables in Markdown and
    CSV with the published figures beside."""

    model: ModelConfig = MISSING
    gpu: GpuConfig = MISSING
    grid: str = field(default=VPTQ, metadata=choices(*GRIDS))
    """vptq: vector-quantized weights in the shapes and codebooks of two published tables. linear:
    our products and vLLM's in the shapes of the model's layers."""
    schemes: list[str] | None = field(default=None, metadata=choices(*FORMATS))
    """For grid=linear: int8 and fp8 (weights and activations), int4 (weights alone), sparse_int8
    and sparse_fp8 (2:4); null is all."""
    vectors: list[int] | None = field(default=None, metadata=within(*VECTORS))
    """For grid=vptq: lengths of vectors. 8 is that of the published tables; 4 has one codebook of
    4,096 or 256 entries, as our recipes; null is 8."""
    tokens: list[int] | None = field(default=None, metadata=within(1, TOKENS_MOST))
    """Numbers of tokens; null is 1 for vptq, as published, and 1, 16, 64 and 1024 for linear."""
    in_features: list[int] | None = field(default=None, metadata=within(1, 2**24))
    """Only shapes with these inputs; null is all of the grid."""
    out_features: list[int] | None = field(default=None, metadata=within(1, 2**24))
    """Only shapes with these outputs; null is all of the grid."""
    seconds: float = field(default=600.0, metadata=above(0, 1e6))
    """Time for all measurements. The same command goes on where it ran out."""
    results: str = field(default="results.jsonl", metadata=not_empty())
    """The file that rows are added to; what it already holds is not measured again."""
    out: str = field(default="kernels", metadata=not_empty())
    """Folder for the tables, kernels.md and kernels.csv."""
    force: bool = False
    """Measure everything again; older rows stay in the file but no longer count."""

    def __post_init__(self) -> None:
        for name in ("schemes", "vectors", "tokens", "in_features", "out_features"):
            if getattr(self, name) == []:
                raise ValueError(f"{name}=[]: leave it out for all")
        if self.grid == VPTQ and max(self.tokens or [1]) > VPTQ_TOKENS:
            raise ValueError(f"tokens={self.tokens}: grid=vptq takes at most {VPTQ_TOKENS}")
        if self.grid == VPTQ and self.schemes is not None:
            raise ValueError("schemes=[...] works only with grid=linear")
        if not set(self.vectors or VECTORS) <= set(VECTORS):
            raise ValueError(f"vectors={self.vectors}: grid=vptq has vectors of 4 and 8")
        if self.grid == LINEAR and self.vectors is not None:
            raise ValueError("vectors=[...] works only with grid=vptq")
        if self.grid == LINEAR and self.model.architecture is None:
            raise ValueError("grid=linear needs a model whose architecture is listed: model=NAME")
