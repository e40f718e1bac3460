"""What the host's processors did during a run. Linux counts it; elsewhere nothing is known."""

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PROCESSES = Path("/proc")
STAT = PROCESSES / "stat"
PRESSURE = Path("/proc/pressure/cpu")
IDLE = (3, 4)  # places of idle and waiting for a disk among the counters of /proc/stat
STOLEN = 7
COUNTERS = 8  # those after are part of the others
MICRO = 1e6
# Places in /proc/PID/stat after the name: the parent, and the ticks of the process in its own code
# and in the system, the same of its children that have ended.
PARENT, OWN_TICKS = 1, slice(11, 15)
THREAD_TICKS = slice(11, 13)  # without children


@dataclass
class HostWatched:
    """Shares of one run; None where the system does not count them."""

    stolen_share: float | None = None
    """Of the CPU time that processes asked for, what the hypervisor gave to other machines."""
    waiting_share: float | None = None
    """The share of the time in which at least one process was ready and had no core."""
    others_share: float | None = None
    """Of the time of the cores that this evaluation may use, what processes took that do not belong
    to it."""
    server_share: float | None = None
    """Of one core, what the server's thread took that reads requests and writes tokens."""
    client_share: float | None = None
    """Of one core, what the thread took that sends requests to a server and reads its answers."""


@contextmanager
def watching_host(server: int | None = None) -> Iterator[HostWatched]:
    """Yields an empty record, and fills it in when the block ends. `server` is the process that
    answers over HTTP, to requests that this thread sends."""
    watched = HostWatched()
    family = os.getppid()  # the evaluation: it starts all engines
    cores = _cores_of(family)
    own, usable = _ticks_of(family), _counters(cores)
    counters, waited = _counters(), _waited_s()
    # Last: reading all processes takes this thread a while.
    served, sent, begun = _main_thread_s(server), time.thread_time(), time.monotonic()
    try:
        yield watched
    finally:
        elapsed = time.monotonic() - begun
        served_after = _main_thread_s(server)
        if served is not None and served_after is not None and elapsed > 0:
            watched.server_share = min(max(served_after - served, 0.0) / elapsed, 1.0)
            watched.client_share = min((time.thread_time() - sent) / elapsed, 1.0)
        counters_after, waited_after = _counters(), _waited_s()
        usable_after = _counters(cores)
        if counters is not None and counters_after is not None:
            watched.stolen_share = stolen_share(counters, counters_after)
        if usable is not None and usable_after is not None:
            own_spent = _ticks_of(family) - own
            watched.others_share = others_share(usable, usable_after, own_spent)
        if waited is not None and waited_after is not None and elapsed > 0:
            watched.waiting_share = min(max(waited_after - waited, 0.0) / elapsed, 1.0)


def stolen_share(before: list[int], after: list[int]) -> float | None:
    """The stolen share of the busy and stolen time between two readings; None if there is none."""
    spent = [max(late - early, 0) for early, late in zip(before, after, strict=True)]
    wanted = sum(ticks for place, ticks in enumerate(spent) if place not in IDLE)
    return spent[STOLEN] / wanted if wanted else None


def others_share(before: list[int], after: list[int], own: int) -> float | None:
    """Of the time of all cores between two readings, what others than `own` took."""
    spent = [max(late - early, 0) for early, late in zip(before, after, strict=True)]
    busy = sum(spent) - spent[STOLEN] - sum(spent[place] for place in IDLE)
    return max(busy - max(own, 0), 0) / sum(spent) if sum(spent) else None


def _ticks_of(family: int) -> int:
    """The ticks that a process and all its descendants have spent, ended ones among them."""
    children: dict[int, list[int]] = defaultdict(list)
    ticks: dict[int, int] = {}
    for number in _processes():
        try:
            text = (PROCESSES / str(number) / "stat").read_text("ascii", errors="replace")
            fields = text.rpartition(")")[2].split()
            children[int(fields[PARENT])].append(number)
            ticks[number] = sum(map(int, fields[OWN_TICKS]))
        except (OSError, ValueError, IndexError):
            continue  # it has ended
    members = [family]
    for member in members:
        members += children[member]
    return sum(ticks.get(member, 0) for member in members)


def _main_thread_s(process: int | None) -> float | None:
    """The CPU time that the main thread of a process has spent; None where it is not known."""
    if process is None:
        return None
    try:
        path = PROCESSES / str(process) / "task" / str(process) / "stat"
        fields = path.read_text("ascii", errors="replace").rpartition(")")[2].split()
        return sum(map(int, fields[THREAD_TICKS])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return None  # it has ended, or this is not Linux


def _processes() -> list[int]:
    try:
        return [int(path.name) for path in PROCESSES.iterdir() if path.name.isdigit()]
    except OSError:
        return []


def _counters(cores: set[int] | None = None) -> list[int] | None:
    """The ticks of some processors together, or of all, by what they did. None where they cannot
    be read, or for no processors."""
    wanted = {"cpu"} if cores is None else {f"cpu{core}" for core in cores}
    try:
        lines = [line.split() for line in STAT.read_text(encoding="ascii").splitlines()]
        found = [list(map(int, ticks[:COUNTERS])) for name, *ticks in lines if name in wanted]
    except (OSError, ValueError):
        return None
    if not found or len(found) != len(wanted) or any(len(ticks) != COUNTERS for ticks in found):
        return None
    return [sum(ticks) for ticks in zip(*found, strict=True)]


def _cores_of(process: int) -> set[int]:
    """The cores that a process may use: others' work on further cores takes nothing from it. Empty
    where that is not known."""
    try:
        return os.sched_getaffinity(process)
    except (AttributeError, OSError):  # not Linux, or it has ended
        return set()


def _waited_s() -> float | None:
    """Seconds since the start of the machine in which a process waited for a core."""
    try:
        some = PRESSURE.read_text(encoding="ascii").partition("\n")[0]
        return int(some.rpartition("total=")[2]) / MICRO
    except (OSError, ValueError):
        return None
