"""The shortest time that the hardware allows for a product: reading its bytes, or multiplying."""

import math
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from conf.cache import rates_file
from conf.hardware import gpu_cards, gpu_names, resolve_gpu
from conf.schema.load import GpuConfig

ACTIVATION_BYTES = 2
MICRO, GIGA, TERA = 1e6, 1e9, 1e12


@dataclass(frozen=True)
class Rates:
    """Rates of a GPU, per second."""

    bandwidth: float
    """Bytes."""
    products: dict[str, float] = field(default_factory=dict)
    """Operations of dense matrix products, by type of numbers."""
    source: str = "measured"
    """measured, or datasheet."""

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
    """The rates of this machine's GPU, which an evaluation has measured, or those of its datasheet.
    None for a GPU that is neither here nor known."""
    if gpu not in gpu_names():
        return None
    path = rates_file(gpu, gpu_cards())
    return _measured(path) or _datasheet(resolve_gpu(GpuConfig()))


def _measured(path: Path) -> Rates | None:
    try:
        rates: Rates = _READER.validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
    return rates


def _datasheet(gpu: GpuConfig) -> Rates | None:
    if not gpu.bandwidth_gb_s:
        return None
    known = {"bf16": gpu.bf16_tflops, "fp8": gpu.fp8_tflops, "int8": gpu.int8_tops}
    products = {kind: rate * TERA for kind, rate in known.items() if rate}
    return Rates(gpu.bandwidth_gb_s * GIGA, products, "datasheet")
