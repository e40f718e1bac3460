"""The shortest time that the hardware allows for a product: reading its bytes, or multiplying."""

import math
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from pydantic import TypeAdapter, ValidationError

from conf.cache import rates_file
from conf.hardware import GPU_FILES, gpu_cards, gpu_names
from conf.schema.load import GpuConfig

MEASURED, DATASHEET = "measured", "datasheet"
ACTIVATION_BYTES = 2
MICRO, GIGA, TERA = 1e6, 1e9, 1e12


@dataclass(frozen=True)
class Rates:
    """Rates of a GPU, per second."""

    bandwidth: float
    """Bytes."""
    products: dict[str, float] = field(default_factory=dict)
    """Operations of dense matrix products, by type of numbers."""
    source: str = MEASURED
    """measured, on this machine; or datasheet."""

    def __post_init__(self) -> None:
        for rate in (self.bandwidth, *self.products.values()):
            if not 0 < rate < math.inf:
                raise ValueError(f"a rate of {rate} a second")

    def least_microseconds(
        self, tokens: int, rows: int, columns: int, weight_bytes: int, numbers: str
    ) -> float:
        """The longer of reading and multiplying. A 2:4 product can be faster than the dense rate
        of multiplying."""
        activations = tokens * (rows + columns) * ACTIVATION_BYTES
        reading = (weight_bytes + activations) / self.bandwidth
        rate = self.products.get(numbers)
        multiplying = 2.0 * tokens * rows * columns / rate if rate else 0.0
        return max(reading, multiplying) * MICRO


_READER = TypeAdapter(Rates)


def rates_of(gpu: str) -> Rates | None:
    """The rates that an evaluation has measured on this machine, where it has such a GPU; else
    those of the GPU's datasheet. None for a GPU of which neither is known."""
    measured = _measured(rates_file(gpu, gpu_cards())) if gpu in gpu_names() else None
    return measured or _datasheet(gpu)


def _measured(path: Path) -> Rates | None:
    try:
        rates: Rates = _READER.validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
    return rates


def _datasheet(name: str) -> Rates | None:
    """By the GPU's name, so that plans of another machine have a limit, too."""
    for path in sorted(GPU_FILES.glob("*.yaml")):
        fields = yaml.safe_load(path.read_text())
        if fields.get("name") == name:
            return _rates(GpuConfig(**fields))
    return None


def _rates(gpu: GpuConfig) -> Rates | None:
    if not gpu.bandwidth_gb_s:
        return None
    known = {"bf16": gpu.bf16_tflops, "fp8": gpu.fp8_tflops, "int8": gpu.int8_tops}
    products = {kind: rate * TERA for kind, rate in known.items() if rate}
    return Rates(gpu.bandwidth_gb_s * GIGA, products, DATASHEET)
