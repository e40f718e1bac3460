"""Compiles the kernels of many candidates at once, before they are measured one by one.

A Triton kernel takes about a second to compile, most of it outside of Python. Triton keeps it in a
folder, so this is paid once for a GPU and version.
"""

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

import torch

MOST_THREADS = 16


def run_once(calls: Sequence[Callable[[], object]], seconds: float) -> int:
    """Runs each call once, several at a time, as long as there is time; says how many ran.

    A call that fails is left out: whoever measures it learns why.
    """
    if not calls:
        return 0
    deadline = time.monotonic() + seconds
    device = torch.cuda.current_device() if torch.cuda.is_available() else None
    if device is not None:
        torch.cuda.synchronize(device)  # threads use another stream than what made the inputs

    def run(call: Callable[[], object]) -> bool:
        if time.monotonic() > deadline:
            return False
        if device is not None:
            torch.cuda.set_device(device)  # of this thread
        try:
            call()
        except Exception:
            return False
        return True

    threads = min(MOST_THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(threads) as pool:
        done = wait([pool.submit(run, call) for call in calls]).done
    if device is not None:
        torch.cuda.synchronize(device)
    return sum(future.result() for future in done)
