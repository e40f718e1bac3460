"""Candidates that are run once before they are measured."""

from serve.kernels.products.compiling import run_once


def test_every_call_runs_and_failures_are_left_out() -> None:
    ran: list[int] = []

    def failing() -> None:
        raise RuntimeError("no such algorithm")

    calls = [lambda: ran.append(1), failing, lambda: ran.append(2)]
    assert run_once(calls, 60.0) == 2
    assert sorted(ran) == [1, 2]


def test_nothing_runs_after_the_time_is_up() -> None:
    ran: list[int] = []
    assert run_once([lambda: ran.append(1)], -1.0) == 0
    assert not ran
