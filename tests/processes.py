"""Whether processes have ended."""

import time

import psutil

LIMIT_S = 120  # of a machine that does much else


def is_alive(process: psutil.Process) -> bool:
    """One that ended and that nobody collects, as in a container, is not alive."""
    try:
        return process.is_running() and bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def wait_until_gone(processes: list[psutil.Process]) -> None:
    limit = time.monotonic() + LIMIT_S
    while left := [process for process in processes if is_alive(process)]:
        assert time.monotonic() < limit, left
        time.sleep(0.02)
