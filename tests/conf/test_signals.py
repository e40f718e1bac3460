"""SIGHUP ends a command as SIGTERM does, unless it was ignored before."""

import os
import pty
import signal
import sys
from collections.abc import Iterator

import pytest

from conf import ROOT
from conf.signals import Terminated, raised_signals

COMMAND = """
import signal, sys
sys.path.insert(0, sys.argv[1])
from conf.signals import Terminated, raised_signals
try:
    with raised_signals():
        print("ready", flush=True)
        signal.pause()
except Terminated as ended:
    print(ended, file=sys.stderr)
    print("to standard output")
    sys.exit(ended.exit_code)
"""


@pytest.fixture(autouse=True)
def _handlers_stay() -> Iterator[None]:
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_raised_once(number: signal.Signals) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

    def end_twice() -> None:
        with raised_signals():
            try:
                os.kill(os.getpid(), number)
            finally:
                os.kill(os.getpid(), signal.SIGHUP)  # while it ends, further ones are ignored

    with pytest.raises(Terminated, match=f"ended by {number.name}") as caught:
        end_twice()
    assert caught.value.exit_code == 128 + number
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL


def test_under_nohup_a_closed_terminal_ends_nothing() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with raised_signals():
        os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_a_closed_terminal_takes_no_words_and_the_exit_code_is_right() -> None:
    process, terminal = pty.fork()
    if not process:
        os.execv(sys.executable, [sys.executable, "-c", COMMAND, str(ROOT)])
    shown = b""
    while b"ready" not in shown:
        shown += os.read(terminal, 1024)
    os.close(terminal)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGHUP
