"""The shapes and formats of a grid."""

from dataclasses import asdict, dataclass

from conf.architecture import Architecture
from conf.errors import bad_input
from conf.schema.kernel_grid import FORMATS, LINEAR, VPTQ, KernelGridConfig
from evaluate.results.kernel_values import KernelSettings

IN_FEATURES = (1024, 2048, 4096, 8192, 16384)
OUT_FEATURES = (1024, 4096, 8192, 14336, 28672, 53248)
CENTROIDS = {
    8: ((4096, 256), (8192, 256), (4096, 512), (8192, 512)),  # as published
    4: ((4096, 0), (256, 0)),  # as our recipes
}
PUBLISHED_VECTOR = 8
TOKENS = (1, 16, 64, 1024)
MERGED = {
    "q_proj": "qkv_proj",
    "k_proj": "qkv_proj",
    "v_proj": "qkv_proj",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
}


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
    model: str = ""
    layer: str = ""

    @property
    def name(self) -> str:
        """As tables and messages show it."""
        books = f", {self.main_centroids}/{self.residual_centroids}" if self.vector else ""
        shape = f"{self.in_features} to {self.out_features}"
        return f"{self.format} {shape}{books}, tokens {self.tokens}"

    def settings(self) -> KernelSettings:
        content = asdict(self)
        del content["model"]  # the row has it
        return KernelSettings.model_validate(content)


def cases(config: KernelGridConfig) -> list[KernelCase]:
    """The products of the grid, small ones first. Raises where the options leave none."""
    all_cases = _linear(config) if config.grid == LINEAR else _vptq(config)
    every = list(dict.fromkeys(all_cases))  # a value may be given twice
    found = [
        case
        for case in every
        if case.in_features in (config.in_features or [case.in_features])
        and case.out_features in (config.out_features or [case.out_features])
    ]
    if not found:
        shapes = sorted({(case.in_features, case.out_features) for case in every})
        known = ", ".join(f"{columns} to {rows}" for columns, rows in shapes)
        raise bad_input(f"grid={config.grid} has no such shape; it has {known}")
    return found


def _vptq(config: KernelGridConfig) -> list[KernelCase]:
    return [
        KernelCase(
            *(VPTQ, VPTQ, tokens, columns, rows),
            main_centroids=mains,
            residual_centroids=residuals,
            vector=vector,
        )
        for vector in config.vectors or [PUBLISHED_VECTOR]
        for tokens in config.tokens or [1]
        for rows in OUT_FEATURES
        for columns in IN_FEATURES
        for mains, residuals in CENTROIDS[vector]
    ]


def _linear(config: KernelGridConfig) -> list[KernelCase]:
    assert config.model.architecture is not None
    return [
        KernelCase(
            *(LINEAR, kind, tokens, columns, rows), model=str(config.model.name), layer=layer
        )
        for kind in config.schemes or FORMATS
        for layer, rows, columns in merged_layers(config.model.architecture)
        for tokens in config.tokens or TOKENS
    ]


def merged_layers(architecture: Architecture) -> list[tuple[str, int, int]]:
    """Name, rows and columns of a layer's products, as vLLM merges them: queries, keys and values
    are one product, and so are gate and up. Experts have kernels of their own."""
    merged: dict[str, tuple[int, int]] = {}
    for matrix in architecture.layer_matrices:
        if matrix.copies > 1:
            continue
        own = matrix.name.rpartition(".")[2]
        name = MERGED.get(own, own)
        merged[name] = (merged.get(name, (0, 0))[0] + matrix.rows, matrix.columns)
    return [(name, *shape) for name, shape in merged.items()]
