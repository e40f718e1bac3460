"""Signals that end a command: SIGTERM, and SIGHUP of a terminal that was closed."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from conf.entry import drop_unread_output

INTERRUPTION = "interrupted"  # what Ctrl-C is called
BY_SIGNAL = 128  # a shell adds the signal's number to it


class Terminated(BaseException):
    """A signal ends the command. A BaseException, so that it is not recorded as a failure."""

    def __init__(self, number: int, kept: str = "") -> None:
        """`kept` says what is kept, and how to continue."""
        self.signal = signal.Signals(number)
        super().__init__("; ".join(filter(None, [f"ended by {self.signal.name}", kept])))

    @property
    def exit_code(self) -> int:
        return BY_SIGNAL + self.signal


def how_to_continue(kept: str, anew: str = "") -> str:
    """What is kept, and what the same command does next. With the option `anew` it does not
    continue."""
    then = f"with {anew} the same command begins anew" if anew else "the same command continues"
    return "; ".join(filter(None, [kept, then]))


def ending_signals() -> list[signal.Signals]:
    """SIGTERM, and SIGHUP unless it is ignored, as `nohup` wants it."""
    is_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [signal.SIGTERM, *([] if is_ignored else [signal.SIGHUP])]


@contextmanager
def raised_signals() -> Iterator[None]:
    """Raises `Terminated` on these signals, so that the command ends as after Ctrl-C, including the
    processes that it started."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals; a caller's program handles its own
        return
    handled = ending_signals()

    def end(number: int, _: object) -> None:
        for each in handled:  # a closed terminal sends SIGHUP twice
            signal.signal(each, signal.SIG_IGN)
        drop_unread_output()  # a closed terminal takes no more words
        raise Terminated(number)

    previous_handlers = {number: signal.signal(number, end) for number in handled}
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


@contextmanager
def interrupts_ignored() -> Iterator[None]:
    """Ignores Ctrl-C, also in processes that are started here. For work that a second Ctrl-C must
    not cut short, as stopping what was started."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous_handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous_handler)
