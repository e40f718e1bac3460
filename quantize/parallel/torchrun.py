"""What a process knows that torchrun has started. Imports nothing heavy."""

import os
import sys

_kept_stderr: int | None = None


def is_rank() -> bool:
    """Whether torchrun has started this process. RANK alone may be another program's."""
    return "TORCHELASTIC_RUN_ID" in os.environ and "RANK" in os.environ


def silence_further_ranks() -> None:
    """Only the first rank talks to the user: all would say the same."""
    if is_rank() and os.environ["RANK"] != "0":
        silence()


def silence() -> None:
    """Drops the output of this process."""
    global _kept_stderr
    sys.stdout.flush()
    sys.stderr.flush()
    _kept_stderr = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def say_despite_silence(message: str) -> None:
    """Prints the one line by which a silent process says why it fails."""
    if _kept_stderr is not None:
        os.write(_kept_stderr, f"{message}\n".encode())
