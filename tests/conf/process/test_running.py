"""Processes of ours: typed both ways, failures that come back, and nothing left behind."""

import math
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from conf import cache
from conf.errors import ENVIRONMENT_FAILURE, GATE_FAILED, QuantlineError
from conf.process.messages import Failure
from conf.process.program import Program
from conf.process.running import call, call_one, start, stream
from tests.conf.process.example_program import EXAMPLE, Done, Order, Ready
from tests.processes import wait_until_gone

STARTER = """
import sys, time
from pathlib import Path
from conf.process.program import Program
from conf.process.running import start
from tests.conf.process.example_program import EXAMPLE, Order
running = start(EXAMPLE, Order('sleep'), Path(sys.argv[1]))
(event,) = [next(running.events())]
print(running.process.pid, event.process, event.child, flush=True)
time.sleep(600)
"""


def test_what_is_sent_comes_back_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.CACHE, str(tmp_path))
    done = call_one(EXAMPLE, Order("echo", {"a": 1.5, "b": math.inf, "c": math.nan}))
    assert isinstance(done, Done)
    assert (done.action, done.sizes["a"], done.sizes["b"]) == ("echo", 1.5, math.inf)
    assert math.isnan(done.sizes["c"])
    assert done.failure == Failure("ValueError: a part", ENVIRONMENT_FAILURE)
    assert list((tmp_path / "logs").iterdir()) == [], "a log stays only where something failed"


@pytest.mark.parametrize(
    ("action", "words", "code"),
    [
        ("refuse", "^it is not good enough$", GATE_FAILED),
        ("crash", r"^the example stopped with 1: KeyError: 'no such thing' \(see .*\)$", 3),
        (
            "die",
            "^the example was ended by SIGKILL; the system may have been out",
            ENVIRONMENT_FAILURE,
        ),
    ],
)
def test_failures_come_back_as_errors_with_their_codes(
    action: str, words: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cache.CACHE, str(tmp_path))
    with pytest.raises(QuantlineError, match=words) as caught:
        call(EXAMPLE, Order(action))
    assert caught.value.exit_code == code
    (log,) = (tmp_path / "logs").iterdir()
    assert "some words of a library" in log.read_text()


def test_a_module_that_is_not_there_is_a_failure(tmp_path: Path) -> None:
    missing = Program("tests.nowhere", Order, (Done,))
    with pytest.raises(QuantlineError, match=r"No module named tests\.nowhere"):
        list(stream(missing, Order("echo"), tmp_path / "log"))


def test_a_loaded_worker_waits_for_its_turn(tmp_path: Path) -> None:
    started = [start(EXAMPLE, Order("wait"), tmp_path / name) for name in ("first", "second")]
    with closing(started[0]) as first, closing(started[1]) as second:
        for running in started:
            running.wait_until(Ready)
        first.begin()
        assert [type(event) for event in first.events()] == [Ready, Done]
        assert second.process.poll() is None
        second.begin()
        assert [type(event) for event in second.events()] == [Ready, Done]
    assert [running.process.returncode for running in started] == [0, 0]


def test_a_fork_that_lives_on_does_not_hold_the_pipe(tmp_path: Path) -> None:
    (done,) = stream(EXAMPLE, Order("fork"), tmp_path / "log")
    assert isinstance(done, Done)


def test_nothing_outlives_a_starter_that_is_killed(tmp_path: Path) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None
    family = [psutil.Process(int(number)) for number in starter.stdout.readline().split()]
    assert len(family) == 3
    os.kill(starter.pid, signal.SIGKILL)
    starter.wait()
    wait_until_gone(family)


def test_closing_ends_all_that_it_started(tmp_path: Path) -> None:
    with closing(start(EXAMPLE, Order("sleep"), tmp_path / "log")) as running:
        ready = next(running.events())
        assert isinstance(ready, Ready)
        family = [psutil.Process(number) for number in (ready.process, ready.child)]
    assert running.process.returncode == -signal.SIGKILL
    wait_until_gone(family)


def test_a_process_that_reports_nothing_for_too_long_is_killed(tmp_path: Path) -> None:
    with closing(start(EXAMPLE, Order("wait"), tmp_path / "log")) as running:
        events = running.events()
        assert isinstance(next(events), Ready)
        running.limit_s = 0.2
        with pytest.raises(QuantlineError, match=r"^the example hung: .* \(see .*log\)$") as raised:
            next(events)
    assert raised.value.exit_code == ENVIRONMENT_FAILURE
    assert running.process.poll() is not None


def test_events_that_arrive_together_are_all_read(tmp_path: Path) -> None:
    with closing(start(EXAMPLE, Order("many"), tmp_path / "log")) as running:
        running.begin()
        running.process.wait()
        running.wait_until(Ready)
        kinds = [type(event) for event in running.events()]
    assert kinds == [Ready] * 50 + [Done]
