"""What the GPU did while a run was timed: energy, memory, clocks, throttling, and whose it was."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

from conf.hardware import gpu_cards, gpu_handles

PAUSE_S = 0.02
SECONDS_TO_CALM = 10
POWER_CAP = 0x4  # as a reason for a lower clock, normal under full load
# Reasons that make a run incomparable.
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
    power_capped: float | None = None
    """The share of the time in which the run's own power lowered the clock, as it should."""
    throttled: list[str] = field(default_factory=list)


class GpuWatch:
    """Looks at GPUs through NVML; sees nothing where there is none, or none was asked for."""

    def __init__(self, count: int = 1) -> None:
        import pynvml

        self.nvml = pynvml
        self.handles = gpu_handles()[:count]

    def processes(self) -> int:
        """Processes that compute on the GPUs now."""
        return sum(
            len(self._asked(self.nvml.nvmlDeviceGetComputeRunningProcesses, handle) or [])
            for handle in self.handles
        )

    def processes_once_calm(self) -> int:
        """The same, after giving those of an engine that has just ended some seconds to go."""
        deadline = time.monotonic() + SECONDS_TO_CALM
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.2)
        return self.processes()

    def facts(self) -> dict[str, Any]:
        """Which card it is, driver, power limit and highest clock, as far as it tells them."""
        if not self.handles:
            return {}
        nvml, first = self.nvml, self.handles[0]
        limit = self._asked(nvml.nvmlDeviceGetEnforcedPowerLimit, first)
        memory = self._asked(nvml.nvmlDeviceGetMemoryInfo, first)
        return {
            "card": next(iter(gpu_cards()), ""),
            "driver": str(nvml.nvmlSystemGetDriverVersion()),
            "power_limit_w": limit / 1e3 if limit else None,
            "max_sm_clock_mhz": self._asked(
                nvml.nvmlDeviceGetMaxClockInfo, first, nvml.NVML_CLOCK_SM
            ),
            "gpu_memory_gib": round(memory.total / 2**30, 1) if memory else None,
        }

    @contextmanager
    def watching(self) -> Iterator[Watched]:
        """Fills in what is yielded when the block ends."""
        seen = Watched()
        if not self.handles:
            yield seen
            return
        done = threading.Event()
        samples: list[Sample] = []
        thread = threading.Thread(target=self._sample, args=(done, samples), daemon=True)
        before = self._energy()
        thread.start()
        try:
            yield seen
        finally:
            after = self._energy()
            done.set()
            thread.join()
            if before is not None and after is not None:
                seen.energy_j = after - before
            summarize(samples, seen)

    def _energy(self) -> float | None:
        """Joules since the driver was loaded, of all cards; none where one does not count them."""
        read = self.nvml.nvmlDeviceGetTotalEnergyConsumption
        counters = [self._asked(read, handle) for handle in self.handles]
        return None if None in counters else sum(counters) / 1e3

    def _sample(self, done: threading.Event, samples: list["Sample"]) -> None:
        """The slowest clock, all memory in use, and every card's reasons to be slow."""
        nvml = self.nvml
        while True:
            clocks = [
                self._asked(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM) or 0
                for handle in self.handles
            ]
            memory = [self._asked(nvml.nvmlDeviceGetMemoryInfo, handle) for handle in self.handles]
            why = [
                self._asked(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
                for handle in self.handles
            ]
            reasons = None if None in why else reduce(or_, why)
            used = sum(entry.used for entry in memory if entry) / 2**30
            samples.append(Sample(float(min(clocks)), used, reasons))
            if done.wait(PAUSE_S):
                return

    def _asked(self, question: Any, *arguments: Any) -> Any:
        """What NVML answers; none where a card does not support the question."""
        try:
            return question(*arguments)
        except self.nvml.NVMLError:
            return None


class Sample(NamedTuple):
    clock: float
    memory: float
    reasons: int | None
    """As bits; none where a card does not tell them."""


def summarize(samples: list[Sample], seen: Watched) -> None:
    clocks = [sample.clock for sample in samples if sample.clock]
    seen.sm_clock_mhz = sum(clocks) / len(clocks) if clocks else None
    seen.peak_memory_gib = max(sample.memory for sample in samples) or None
    told = [sample.reasons for sample in samples if sample.reasons is not None]
    if told:
        seen.power_capped = sum(bool(reasons & POWER_CAP) for reasons in told) / len(told)
    seen.throttled = [words for bit, words in HARMFUL.items() if any(why & bit for why in told)]
