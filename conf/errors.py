"""The error that users see: a single message and an exit code, no traceback."""

import difflib
import errno
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

INTERNAL_ERROR = 1
BAD_INPUT = 2
ENVIRONMENT_FAILURE = 3
GATE_FAILED = 4
UNDECIDED = 5  # a comparison that the data cannot decide
MOST_LISTED, NEAREST_LISTED = 60, 8
LONGEST_REASON = 400
# The machine lacks or refuses something, whatever the request. A missing path is not among them.
ENVIRONMENT_ERRNOS = frozenset(
    {
        errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM,
        errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EBUSY, errno.ESTALE,
        errno.ENODEV, errno.ENXIO, errno.ETXTBSY,
    }
)  # fmt: skip
# Rust libraries (safetensors, tokenizers) give the errno only in their message.
OS_ERROR = re.compile(r"\(os error (\d+)\)")
# pathlib has no classes for these.
SYMLINK_LOOP, NO_HOME = "Symlink loop from ", "Could not determine home directory"
RUST_PANIC = "PanicException"  # not an Exception; each of these libraries has a class of its own
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")


class QuantlineError(Exception):
    """Something the user can act on. The message names the file, key or option and the value."""

    def __init__(self, message: str, exit_code: int = BAD_INPUT) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def bad_input(message: str) -> QuantlineError:
    """The request itself is wrong: an option, a file, a combination."""
    return QuantlineError(message, BAD_INPUT)


def environment_failure(message: str) -> QuantlineError:
    """An environment error: the request is valid, but disk, memory, network or a process failed."""
    return QuantlineError(message, ENVIRONMENT_FAILURE)


def gate_failed(message: str) -> QuantlineError:
    """The work was done, but its result is not good enough to keep."""
    return QuantlineError(message, GATE_FAILED)


def environment_reason(error: BaseException | None) -> str | None:
    """The environment error behind this error or one of its causes; None without one."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        reason = _own_environment_reason(error)
        if reason:
            return reason
        is_context_hidden = error.__suppress_context__
        error = error.__cause__ if is_context_hidden else error.__cause__ or error.__context__
    return None


def _own_environment_reason(error: BaseException) -> str | None:
    if isinstance(error, OSError) and error.errno in ENVIRONMENT_ERRNOS:
        where = f": {error.filename}" if error.filename else ""
        return f"{os.strerror(error.errno)}{where}"
    errno_in_message = OS_ERROR.search(str(error))
    if errno_in_message and int(errno_in_message[1]) in ENVIRONMENT_ERRNOS:
        return os.strerror(int(errno_in_message[1]))
    if isinstance(error, MemoryError):
        return "out of memory"
    if isinstance(error, RuntimeError) and any(
        phrase in str(error).lower() for phrase in OUT_OF_MEMORY
    ):
        return one_line(error)
    return None


def message_and_code(error: Exception) -> tuple[str, int]:
    """The message of an error and its exit code."""
    if isinstance(error, QuantlineError):
        return str(error), error.exit_code
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return f"{error.filename}: is too long for a path", BAD_INPUT
    if isinstance(error, OSError):
        return str(error), ENVIRONMENT_FAILURE
    if isinstance(error, RuntimeError) and str(error).startswith(SYMLINK_LOOP):
        return f"{str(error).removeprefix(SYMLINK_LOOP)} is a loop of symbolic links", BAD_INPUT
    if isinstance(error, RuntimeError) and str(error).startswith(NO_HOME):
        return "a path begins with ~NAME, and there is no user of that name", BAD_INPUT
    reason = environment_reason(error)  # a library may have its own error for a full disk
    if reason:
        return reason, ENVIRONMENT_FAILURE
    return f"{type(error).__name__}: {error}", INTERNAL_ERROR


def one_line(error: BaseException) -> str:
    """A library's message on one line, to be quoted in a message of ours."""
    message = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, KeyError):
        message = f"{message} is not known"
    is_short = len(message) <= LONGEST_REASON
    return message if is_short else f"{message[:LONGEST_REASON]}..."


@contextmanager
def reading(what: Path | str) -> Iterator[None]:
    """Turns a library's error about user input into bad input, or into an environment error."""
    try:
        yield
    except QuantlineError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != RUST_PANIC:
            raise
        reason = environment_reason(error)
        if reason:
            raise environment_failure(f"{what}: {reason}") from error
        raise bad_input(f"{what}: {one_line(error)}") from error


@contextmanager
def writing(path: Path | str) -> Iterator[None]:
    """Turns an environment error into one that names the path being written."""
    try:
        yield
    except QuantlineError:
        raise
    except Exception as error:
        reason = environment_reason(error)
        if reason is None:
            raise
        raise environment_failure(f"{path}: could not be written ({reason})") from error


def last_line(output: str) -> str:
    """The last line of a process's output, without the `error: ` that our commands print."""
    lines = output.strip().splitlines() or ["no output"]
    return lines[-1].removeprefix("error: ")


def nearest(name: str, known: Iterable[str]) -> str:
    """A 'Did you mean' question with the closest known name; empty where none is close."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean {close[0]}?" if close else ""


def unknown(what: str, name: str, known: Iterable[str]) -> QuantlineError:
    """`name` is not one of `known`. The message suggests a close name and lists the known ones."""
    choices = sorted(known)
    hint = nearest(name, choices)
    listed = ", ".join(choices) if choices else "none"
    if len(choices) > MOST_LISTED:
        near = difflib.get_close_matches(name, choices, n=NEAREST_LISTED, cutoff=0)
        listed = f"{len(choices)} names, of them the nearest {', '.join(near)}"
    return bad_input(f"{what}: there is no '{name}'.{hint} Known: {listed}.")
