"""Ranks exchange tensors and objects in a fixed order."""

import threading
import time
from contextlib import suppress
from pathlib import Path

import torch

from quantize.parallel.ranks import ALONE, Ranks
from tests.processes import LIMIT_S
from tests.quantize.parallel.together import in_two_ranks


def test_tensors_come_in_the_order_of_the_ranks() -> None:
    def exchange(ranks: Ranks) -> list[torch.Tensor]:
        return ranks.in_order(torch.full((2, 3), float(ranks.rank)).t())

    for everyone in in_two_ranks(exchange):
        assert [tensor.shape for tensor in everyone] == [(3, 2), (3, 2)]
        assert [float(tensor[0, 0]) for tensor in everyone] == [0.0, 1.0]


def test_a_sum_is_made_in_the_order_of_the_ranks() -> None:
    values = [torch.tensor([1e8, 1.0]), torch.tensor([1.0, 1e8])]
    sums = in_two_ranks(lambda ranks: ranks.sum(values[ranks.rank].clone()))
    assert torch.equal(sums[0], sums[1])
    assert torch.equal(sums[0], values[0] + values[1])


def test_objects_of_different_sizes_are_exchanged() -> None:
    everyone = in_two_ranks(lambda ranks: ranks.objects("x" * (1 + 99 * ranks.rank)))
    assert everyone == [["x", "x" * 100]] * 2
    assert in_two_ranks(lambda ranks: ranks.of_first(ranks.rank)) == [0, 0]


def test_the_first_rank_works_before_the_others() -> None:
    order: list[int] = []
    lock = threading.Lock()

    def work(ranks: Ranks) -> None:
        def note() -> None:
            with lock:
                order.append(ranks.rank)

        ranks.first_alone(note)

    in_two_ranks(work)
    assert order == [0, 1]


def test_one_rank_alone_reports_a_failure() -> None:
    claims = in_two_ranks(lambda ranks: ranks.claims_failure())
    assert sorted(claims) == [False, True]


def test_no_thread_of_an_exchange_outlives_its_end() -> None:
    """One that lets go of a tensor while Python shuts down aborts the process."""

    def exchange(ranks: Ranks) -> tuple[Ranks, bool]:
        ranks.wait()
        began = bool(gloo_threads() - before)
        ranks.wait()
        ranks.close()
        return ranks, began

    before = gloo_threads()
    ended = in_two_ranks(exchange)
    assert [began for _, began in ended] == [True, True]
    limit = time.monotonic() + LIMIT_S
    while gloo_threads() - before:  # the kernel may list one that has ended a moment longer
        assert time.monotonic() < limit
        time.sleep(0.02)


def gloo_threads() -> set[str]:
    """The ids of the threads that exchange tensors in this process."""
    found = set()
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended meanwhile
            if "gloo" in (thread / "comm").read_text():
                found.add(thread.name)
    return found


def test_a_single_process_exchanges_nothing() -> None:
    tensor = torch.ones(2)
    assert ALONE.sum(tensor) is tensor
    assert ALONE.is_first
    assert not ALONE.are_several
    assert ALONE.objects("mine") == ["mine"]
    assert ALONE.claims_failure()
