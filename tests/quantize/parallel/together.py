"""Two ranks in two threads, and work for processes that the launcher starts."""

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from conf.errors import bad_input, environment_failure
from conf.schema.commands import QuantizeConfig
from quantize.parallel.ranks import RANKS, Ranks

Value = TypeVar("Value")


def in_two_ranks(work: Callable[[Ranks], Value]) -> list[Value]:
    """What `work` returns in each of two ranks, which exchange tensors by gloo."""
    store = dist.HashStore()

    def run(rank: int) -> Value:
        ranks = Ranks(rank, 2, store)
        RANKS.set(ranks)  # a thread has a context of its own
        return work(ranks)

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(run, range(2)))


def note_rank(config: QuantizeConfig) -> None:
    """Every rank writes the sum of all ranks to a file of its own."""
    ranks = RANKS.get()
    total = sum(ranks.objects(ranks.rank + 1))
    Path(config.output_dir, f"rank{ranks.rank}").write_text(f"{total} of {ranks.size}")


def second_fails(config: QuantizeConfig) -> None:
    """The first rank waits for the second, which fails."""
    if RANKS.get().rank:
        raise bad_input("recipe=mine: rank 1 does not like it")
    RANKS.get().wait()


def second_is_killed(config: QuantizeConfig) -> None:
    if RANKS.get().rank:
        os.kill(os.getpid(), signal.SIGKILL)
    RANKS.get().wait()


def second_fails_in_the_second_layer(config: QuantizeConfig) -> None:
    """A real calibration that ends early."""
    from quantize.calibrate.sequential import _Passes
    from quantize.pipeline import quantize

    own = _Passes._run_layer

    def run_layer(passes: Any, layer: int, *arguments: Any, **options: Any) -> None:
        if RANKS.get().rank and layer == 1:
            raise environment_failure("rank 1 has no memory left")
        own(passes, layer, *arguments, **options)

    _Passes._run_layer = run_layer  # type: ignore[method-assign]
    quantize(config)
