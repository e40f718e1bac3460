"""Events of several processes at once: none is lost, and an early end leaves no process."""

import os
import queue
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psutil
import pytest

from conf.errors import QuantlineError, environment_failure
from conf.process.merged import Ended, merged
from conf.process.running import start
from tests.conf.process.example_program import EXAMPLE, Order, Ready
from tests.processes import wait_until_gone


def test_events_come_as_they_arrive() -> None:
    """The first stream goes on only after the second has sent something."""
    sent: queue.SimpleQueue[str] = queue.SimpleQueue()

    def waits() -> Iterator[str]:
        yield sent.get(timeout=60)

    both = merged({"waits": waits(), "sends": iter(["second"])})
    assert next(both) == "second"
    sent.put("first")
    rest = set(both)
    assert rest == {"first", Ended("waits", None), Ended("sends", None)}


def test_a_stream_that_fails_ends_alone() -> None:
    failure = environment_failure("the engine died")
    other_failed = threading.Event()

    def fails() -> Iterator[int]:
        yield 1
        raise failure

    def goes_on() -> Iterator[int]:
        assert other_failed.wait(60)
        yield 2

    events = []
    for event in merged({"fails": fails(), "goes_on": goes_on()}):
        events.append(event)
        if event == Ended("fails", failure):
            other_failed.set()
    assert events == [1, Ended("fails", failure), 2, Ended("goes_on", None)]


def test_a_signal_interrupts_the_waiting() -> None:
    begins, ends = threading.Event(), threading.Event()

    def waits() -> Iterator[int]:
        yield 1
        begins.wait(60)
        os.kill(os.getpid(), signal.SIGINT)
        ends.wait(60)

    events = merged({"waits": waits()})
    assert next(events) == 1

    def go_on() -> None:
        begins.set()
        next(events)

    with pytest.raises(KeyboardInterrupt):
        go_on()
    ends.set()


def test_nothing_to_merge_is_the_end() -> None:
    assert list(merged({})) == []


def test_processes_end_with_a_caller_that_stops_early(tmp_path: Path) -> None:
    processes = []
    with ExitStack() as stack:
        workers = {}
        for name in ("first", "second"):
            worker = start(EXAMPLE, Order("sleep"), tmp_path / name)
            workers[name] = stack.enter_context(closing(worker))
            processes.append(psutil.Process(worker.process.pid))
        for event in merged({name: worker.events() for name, worker in workers.items()}):
            assert isinstance(event, Ready)
            processes += [psutil.Process(pid) for pid in (event.process, event.child)]
            if len(processes) == 6:
                break
    wait_until_gone(processes)


def test_a_process_that_dies_beside_others_is_named(tmp_path: Path) -> None:
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(closing(start(EXAMPLE, Order(name), tmp_path / name)))
            for name in ("die", "echo")
        }
        for worker in workers.values():
            worker.begin()
        events = list(merged({name: worker.events() for name, worker in workers.items()}))
    ended = {event.name: event.error for event in events if isinstance(event, Ended)}
    assert ended["echo"] is None
    assert isinstance(ended["die"], QuantlineError)
    assert "the example was ended by SIGKILL" in str(ended["die"])
