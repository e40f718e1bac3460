"""Names the process that holds a lock: its id is the content of the lock file."""

import os
from pathlib import Path


def write_holder(file: Path) -> None:
    """Records this process as the holder. The caller has the lock. A full disk leaves no file."""
    try:
        file.write_text(f"{os.getpid()}\n")
    except OSError:
        file.unlink(missing_ok=True)
        raise


def holder(file: Path) -> str:
    """The process that holds the lock, in brackets; empty if the lock file does not name it."""
    try:
        process_id = file.read_text().strip()
    except (OSError, ValueError):
        return ""
    return f" (process {process_id})" if process_id.isdigit() else ""
