"""Options of `quantize.benchmark`."""

from dataclasses import dataclass, field

from conf.schema.commands import QuantizeConfig
from conf.schema.ranges import within


@dataclass
class BenchmarkConfig(QuantizeConfig):
    """Compares the time, memory and layer errors of quantizing here and with llm-compressor."""

    depths: list[int] = field(default_factory=lambda: [2, 6], metadata=within(1, 1000))
    """Numbers of layers to quantize, the smallest first. What a layer costs is the slope."""
    reference: bool = True
    """Run llm-compressor's own loop, too."""
    reference_depths: list[int] | None = field(default=None, metadata=within(1, 1000))
    """Numbers of layers for llm-compressor's loop, which takes long; none: the same."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("depths", "reference_depths"):
            depths = getattr(self, name)
            if depths is not None and (depths != sorted(set(depths)) or len(depths) < 2):
                raise ValueError(f"{name}={depths}: give two or more numbers, the smallest first")
