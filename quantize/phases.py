"""The parts of a run: how long each took, and how much GPU memory it held at most."""

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

GIB = 2**30


@dataclass
class Phases:
    """Records each phase that runs in `phase()`."""

    seconds: dict[str, float] = field(default_factory=dict)
    gpu_gib: dict[str, float] = field(default_factory=dict)
    """Highest use of GPU memory in each phase; empty without a GPU."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        on_gpu = torch.cuda.is_available()
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start
        if on_gpu:
            self.gpu_gib[name] = torch.cuda.max_memory_allocated() / GIB

    def rounded_seconds(self) -> dict[str, float]:
        return {name: round(seconds, 2) for name, seconds in self.seconds.items()}

    def peak_memory_gib(self) -> dict[str, float]:
        """Of the process so far, and on the GPU of each phase, as `gpu_save`."""
        host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB
        peaks = {"host": host, "gpu": max(self.gpu_gib.values(), default=0.0)}
        peaks |= {f"gpu_{name}": gib for name, gib in self.gpu_gib.items()}
        return {name: round(gib, 2) for name, gib in peaks.items()}
