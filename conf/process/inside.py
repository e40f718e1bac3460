"""The life of a process of ours, seen from inside: read the request, do the work, send events."""

import os
import sys
from collections.abc import Callable
from typing import Any

from conf.entry import answer_flags
from conf.errors import QuantlineError
from conf.process.messages import Failure, decode, encode
from conf.process.program import Event, Program, Request

Send = Callable[[Event], None]


def fulfil(
    program: Program[Request, Event], work: Callable[[Request, Send[Event]], None], help_text: str
) -> None:
    """Does the work that standard input asks for. An error for the user goes to the caller; any
    other ends the process with a traceback in its log."""
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
    """Returns when the caller has closed our standard input: `Running.begin`."""
    sys.stdin.read()


def _close_in_forks(descriptor: int) -> None:
    """Processes that an engine forks must not hold the pipe: its end is our end."""
    os.set_inheritable(descriptor, False)
    held = [descriptor]

    def drop() -> None:
        # Once in each line of descent: later the number may belong to another file.
        while held:
            os.close(held.pop())

    os.register_at_fork(after_in_child=drop)
