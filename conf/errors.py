"""The one error a user meets: a single message and an exit code, no traceback."""

import difflib
from collections.abc import Iterable

BAD_INPUT = 2
WORLD_FAULT = 3
GATE_FAILED = 4
MOST_LISTED, NEAR = 60, 8


class QuantlineError(Exception):
    """Something the user can act on. The message names the file, key or option and the value."""

    def __init__(self, message: str, exit_code: int = BAD_INPUT) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def bad_input(message: str) -> QuantlineError:
    """The request itself is wrong: an option, a file, a combination."""
    return QuantlineError(message, BAD_INPUT)


def world_fault(message: str) -> QuantlineError:
    """The request is fine and the world failed it: disk, memory, network, a dead process."""
    return QuantlineError(message, WORLD_FAULT)


def gate_failed(message: str) -> QuantlineError:
    """The work was done and the result is not good enough to keep."""
    return QuantlineError(message, GATE_FAILED)


def last_line(words: str) -> str:
    """What a process said last, without the mark that our own put before an error."""
    lines = words.strip().splitlines() or ["no output"]
    return lines[-1].removeprefix("error: ")


def nearest(name: str, known: Iterable[str]) -> str:
    """A question that names the nearest right word; nothing where none is near."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean {close[0]}?" if close else ""


def unknown(what: str, name: str, known: Iterable[str]) -> QuantlineError:
    """`name` is not one of `known`: says what is close and what exists."""
    choices = sorted(known)
    hint = nearest(name, choices)
    listed = ", ".join(choices) if choices else "none"
    if len(choices) > MOST_LISTED:
        near = difflib.get_close_matches(name, choices, n=NEAR, cutoff=0)
        listed = f"{len(choices)} names, of them the nearest {', '.join(near)}"
    return bad_input(f"{what}: there is no '{name}'.{hint} Known: {listed}.")
