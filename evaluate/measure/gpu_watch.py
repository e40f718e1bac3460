"""Watches the GPU during a timed run: energy, memory, clocks, throttling and processes."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

from conf.hardware import gpu_cards, gpu_handles
from evaluate.measure.host_watch import HostWatched

PAUSE_S = 0.02
SECONDS_TO_CALM = 10
POWER_CAP = 0x4  # NVML's reason bit for the power limit, normal under full load
# Reasons that make a run incomparable.
HARMFUL = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}


@dataclass
class Watched:
    """Measurements of one run: of the GPUs, which are empty without one, and of the host."""

    energy_j: float | None = None
    peak_memory_gib: float | None = None
    sm_clock_mhz: float | None = None
    power_capped: float | None = None
    """The share of the time in which the power limit lowered the clock, which is normal."""
    throttled: list[str] = field(default_factory=list)
    host: HostWatched = field(default_factory=HostWatched)


@dataclass(frozen=True)
class GpuFacts:
    """What a row's environment says about the GPU; None for what the card does not report."""

    card: str
    """Identity of the individual card."""
    driver: str
    power_limit_w: float | None
    max_sm_clock_mhz: float | None
    gpu_memory_gib: float | None


class GpuWatch:
    """Reads GPUs through NVML. Returns nothing without a GPU or with a count of 0."""

    def __init__(self, count: int = 1) -> None:
        import pynvml

        self.nvml = pynvml
        self.handles = gpu_handles()[:count]

    def processes(self) -> frozenset[int]:
        """The numbers of the processes that compute on the GPUs now."""
        return frozenset(
            process.pid
            for handle in self.handles
            for process in self._query(self.nvml.nvmlDeviceGetComputeRunningProcesses, handle) or []
        )

    def processes_once_calm(self) -> frozenset[int]:
        """The same, after waiting some seconds for the processes of an ended engine to exit."""
        deadline = time.monotonic() + SECONDS_TO_CALM
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.2)
        return self.processes()

    def facts(self) -> "GpuFacts | None":
        """The facts of the first card; None without a GPU."""
        if not self.handles:
            return None
        nvml, first = self.nvml, self.handles[0]
        limit = self._query(nvml.nvmlDeviceGetEnforcedPowerLimit, first)
        memory = self._query(nvml.nvmlDeviceGetMemoryInfo, first)
        return GpuFacts(
            card=next(iter(gpu_cards()), ""),
            driver=str(nvml.nvmlSystemGetDriverVersion()),
            power_limit_w=limit / 1e3 if limit else None,
            max_sm_clock_mhz=self._query(nvml.nvmlDeviceGetMaxClockInfo, first, nvml.NVML_CLOCK_SM),
            gpu_memory_gib=round(memory.total / 2**30, 1) if memory else None,
        )

    @contextmanager
    def watching(self) -> Iterator[Watched]:
        """Yields an empty record, and fills it in when the block ends."""
        watched = Watched()
        if not self.handles:
            yield watched
            return
        done = threading.Event()
        samples: list[GpuSample] = []
        thread = threading.Thread(target=self._sample, args=(done, samples), daemon=True)
        energy_before = self._energy()
        thread.start()
        try:
            yield watched
        finally:
            energy_after = self._energy()
            done.set()
            thread.join()
            if energy_before is not None and energy_after is not None:
                watched.energy_j = energy_after - energy_before
            summarize(samples, watched)

    def _energy(self) -> float | None:
        """Joules of all cards since the driver was loaded; None if a card does not count them."""
        read = self.nvml.nvmlDeviceGetTotalEnergyConsumption
        counters = [self._query(read, handle) for handle in self.handles]
        return None if None in counters else sum(counters) / 1e3

    def _sample(self, done: threading.Event, samples: list["GpuSample"]) -> None:
        """Samples the slowest clock, the total memory in use and all cards' throttle reasons."""
        nvml = self.nvml
        while True:
            clocks = [
                self._query(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM) or 0
                for handle in self.handles
            ]
            memory = [self._query(nvml.nvmlDeviceGetMemoryInfo, handle) for handle in self.handles]
            throttle_reasons = [
                self._query(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
                for handle in self.handles
            ]
            reasons = None if None in throttle_reasons else reduce(or_, throttle_reasons)
            used = sum(entry.used for entry in memory if entry) / 2**30
            samples.append(GpuSample(float(min(clocks)), used, reasons))
            if done.wait(PAUSE_S):
                return

    def _query(self, read: Any, *arguments: Any) -> Any:
        """The result of an NVML call; None if the card does not support it."""
        try:
            return read(*arguments)
        except self.nvml.NVMLError:
            return None


class GpuSample(NamedTuple):
    """One reading of all GPUs."""

    clock: float
    memory: float
    reasons: int | None
    """As bits; None if a card does not report them."""


def others_of(processes: frozenset[int], before: frozenset[int], at_turn: frozenset[int]) -> int:
    """How many of the processes during a run are not ours: those that were there before any engine
    of ours, and those that came after the engine's turn had begun."""
    return len((processes & before) | (processes - at_turn))


def summarize(samples: list[GpuSample], watched: Watched) -> None:
    clocks = [sample.clock for sample in samples if sample.clock]
    watched.sm_clock_mhz = sum(clocks) / len(clocks) if clocks else None
    watched.peak_memory_gib = max(sample.memory for sample in samples) or None
    known_reasons = [sample.reasons for sample in samples if sample.reasons is not None]
    if known_reasons:
        capped = sum(bool(reasons & POWER_CAP) for reasons in known_reasons)
        watched.power_capped = capped / len(known_reasons)
    watched.throttled = [
        name for bit, name in HARMFUL.items() if any(reasons & bit for reasons in known_reasons)
    ]
