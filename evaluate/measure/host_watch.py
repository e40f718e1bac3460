"""What the host's processors did during a run. Linux counts it; elsewhere nothing is known."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

STAT = Path("/proc/stat")
PRESSURE = Path("/proc/pressure/cpu")
IDLE = (3, 4)  # places of idle and waiting for a disk among the counters of /proc/stat
STOLEN = 7
COUNTERS = 8  # those after are part of the others
MICRO = 1e6


@dataclass
class HostWatched:
    """Shares of one run; None where the system does not count them."""

    stolen_share: float | None = None
    """Of the CPU time that processes asked for, what the hypervisor gave to other machines."""
    waiting_share: float | None = None
    """The share of the time in which at least one process was ready and had no core."""


@contextmanager
def watching_host() -> Iterator[HostWatched]:
    """Yields an empty record, and fills it in when the block ends."""
    watched = HostWatched()
    counters, waited, begun = _counters(), _waited_s(), time.monotonic()
    try:
        yield watched
    finally:
        elapsed = time.monotonic() - begun
        counters_after, waited_after = _counters(), _waited_s()
        if counters is not None and counters_after is not None:
            watched.stolen_share = stolen_share(counters, counters_after)
        if waited is not None and waited_after is not None and elapsed > 0:
            watched.waiting_share = min(max(waited_after - waited, 0.0) / elapsed, 1.0)


def stolen_share(before: list[int], after: list[int]) -> float | None:
    """The stolen share of the busy and stolen time between two readings; None if there is none."""
    spent = [max(late - early, 0) for early, late in zip(before, after, strict=True)]
    wanted = sum(ticks for place, ticks in enumerate(spent) if place not in IDLE)
    return spent[STOLEN] / wanted if wanted else None


def _counters() -> list[int] | None:
    """The ticks of all processors together, by what they did."""
    try:
        name, *ticks = STAT.read_text(encoding="ascii").partition("\n")[0].split()
        counters = [int(each) for each in ticks[:COUNTERS]]
    except (OSError, ValueError):
        return None
    return counters if name == "cpu" and len(counters) == COUNTERS else None


def _waited_s() -> float | None:
    """Seconds since the start of the machine in which a process waited for a core."""
    try:
        some = PRESSURE.read_text(encoding="ascii").partition("\n")[0]
        return int(some.rpartition("total=")[2]) / MICRO
    except (OSError, ValueError):
        return None
