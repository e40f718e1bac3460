"""The shapes and formats of a grid."""

from dataclasses import asdict, dataclass

from conf.errors import bad_input
from conf.schema.kernel_grid import KernelGridConfig
from evaluate.results.kernel_values import KernelSettings

IN_FEATURES = (1024, 2048, 4096, 8192, 16384)
OUT_FEATURES = (1024, 4096, 8192, 14336, 28672, 53248)
CENTROIDS = ((4096, 256), (8192, 256), (4096, 512), (8192, 512))
VECTOR = 8


@dataclass(frozen=True)
class KernelCase:
    """One product to time."""

    grid: str
    format: str
    tokens: int
    in_features: int
    out_features: int
    main_centroids: int = 0
    residual_centroids: int = 0
    vector: int = 0

    @property
    def name(self) -> str:
        """As tables and messages show it."""
        books = f", {self.main_centroids}/{self.residual_centroids}" if self.vector else ""
        return f"{self.format} {self.in_features} to {self.out_features}{books}, {self.tokens} tok"

    def settings(self) -> KernelSettings:
        return KernelSettings.model_validate(asdict(self))


def cases(config: KernelGridConfig) -> list[KernelCase]:
    """The products of the grid, small ones first. Raises where the options leave none."""
    found = [
        KernelCase(config.grid, config.grid, tokens, columns, rows, mains, residuals, VECTOR)
        for tokens in config.tokens or [1]
        for rows in OUT_FEATURES
        for columns in IN_FEATURES
        for mains, residuals in CENTROIDS
        if columns in (config.in_features or IN_FEATURES)
        and rows in (config.out_features or OUT_FEATURES)
    ]
    if not found:
        shapes = f"in_features {list(IN_FEATURES)}, out_features {list(OUT_FEATURES)}"
        raise bad_input(f"grid={config.grid} has no such shape; it has {shapes}")
    return found
