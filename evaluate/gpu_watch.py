"""What the GPU did while a run was timed: energy, memory, clocks, throttling, and whose it was."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from conf.hardware import gpu_names

PAUSE_S = 0.02
# Reasons for lower clocks that make a run incomparable; a power cap under full load is normal.
HARMFUL = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}


@dataclass
class Watched:
    """What was seen in one run; empty without a GPU."""

    energy_j: float | None = None
    peak_memory_gib: float | None = None
    sm_clock_mhz: float | None = None
    throttled: list[str] = field(default_factory=list)


class GpuWatch:
    """Looks at the first GPUs of the machine through NVML; sees nothing where there is none."""

    def __init__(self, count: int = 1) -> None:
        self.handles: list[Any] = []
        if gpu_names():
            import pynvml

            self.nvml = pynvml
            self.handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(count)]

    def processes(self) -> int:
        """Processes that compute on the GPUs now."""
        return sum(
            len(self.nvml.nvmlDeviceGetComputeRunningProcesses(handle)) for handle in self.handles
        )

    def facts(self) -> dict[str, Any]:
        """Driver, power limit and highest clock."""
        if not self.handles:
            return {}
        nvml, first = self.nvml, self.handles[0]
        return {
            "driver": str(nvml.nvmlSystemGetDriverVersion()),
            "power_limit_w": nvml.nvmlDeviceGetEnforcedPowerLimit(first) / 1e3,
            "max_sm_clock_mhz": nvml.nvmlDeviceGetMaxClockInfo(first, nvml.NVML_CLOCK_SM),
            "gpu_memory_gib": round(nvml.nvmlDeviceGetMemoryInfo(first).total / 2**30, 1),
        }

    @contextmanager
    def watching(self) -> Iterator[Watched]:
        """Fills in what is yielded when the block ends."""
        seen = Watched()
        if not self.handles:
            yield seen
            return
        done = threading.Event()
        samples: list[tuple[float, float, int]] = []
        thread = threading.Thread(target=self._sample, args=(done, samples), daemon=True)
        before = self._energy()
        thread.start()
        try:
            yield seen
        finally:
            seen.energy_j = self._energy() - before
            done.set()
            thread.join()
            clocks, memory, reasons = zip(*samples, strict=True)
            seen.sm_clock_mhz = sum(clocks) / len(clocks)
            seen.peak_memory_gib = max(memory)
            combined = 0
            for reason in reasons:
                combined |= reason
            seen.throttled = [words for bit, words in HARMFUL.items() if combined & bit]

    def _energy(self) -> float:
        """Joules since the driver was loaded; zero where a card does not count them."""
        try:
            counters = map(self.nvml.nvmlDeviceGetTotalEnergyConsumption, self.handles)
            return float(sum(counters)) / 1e3
        except self.nvml.NVMLError:
            return 0.0

    def _sample(self, done: threading.Event, samples: list[tuple[float, float, int]]) -> None:
        nvml, first = self.nvml, self.handles[0]
        while True:
            samples.append(
                (
                    float(nvml.nvmlDeviceGetClockInfo(first, nvml.NVML_CLOCK_SM)),
                    nvml.nvmlDeviceGetMemoryInfo(first).used / 2**30,
                    int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(first)),
                )
            )
            if done.wait(PAUSE_S):
                return
