"""Options of the benchmark of single kernels."""

from dataclasses import dataclass, field

from omegaconf import MISSING

from conf.schema.load import GpuConfig
from conf.schema.ranges import above, choices, not_empty, within

VPTQ = "vptq"
GRIDS = (VPTQ,)


@dataclass
class KernelGridConfig:
    """Times kernels one by one beside torch's product in bf16: with a cold and with a warm cache,
    in CUDA graphs, each checked against float64. Writes a row for each, and tables in Markdown and
    CSV with the published figures beside."""

    gpu: GpuConfig = MISSING
    grid: str = field(default=VPTQ, metadata=choices(*GRIDS))
    """vptq: vector-quantized weights in the shapes and codebooks of two published tables."""
    tokens: list[int] | None = field(default=None, metadata=within(1, 16))
    """Numbers of tokens; null is 1, as published."""
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
