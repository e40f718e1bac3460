"""The inside of a process of ours: reads the request, does the work, sends events."""

import os
import sys
from collections.abc import Callable
from typing import Any

from conf.entry import answer_flags
from conf.errors import QuantlineError
from conf.process.messages import Failure, decode, encode
from conf.process.program import Event, Program, Request

Send = Callable[[Event], None]


def run_program(
    program: Program[Request, Event], work: Callable[[Request, Send[Event]], None], help_text: str
) -> None:
    """Does the work of the request on standard input. An error for the user is sent to the caller;
    any other ends the process with a traceback in its log."""
    answer_flags(sys.argv[1:], help_text)
    events = int(sys.argv[1])
    _close_in_forks(events)

    def send(message: Any) -> None:
        os.write(events, encode(message))

    request: Request = decode(sys.stdin.readline(), [program.request])
    try:
        work(request, send)
    except QuantlineError as error:
        send(Failure.of(error))
        sys.exit(error.exit_code)


def wait_for_turn() -> None:
    """Returns when the caller has closed our standard input with `Running.begin`."""
    sys.stdin.read()


def _close_in_forks(descriptor: int) -> None:
    """Closes the pipe in processes that an engine forks: its end tells the caller that we ended."""
    os.set_inheritable(descriptor, False)
    open_descriptors = [descriptor]

    def close_once() -> None:
        # Only once in a process and its forks: later the number may belong to another file.
        while open_descriptors:
            os.close(open_descriptors.pop())

    os.register_at_fork(after_in_child=close_once)
