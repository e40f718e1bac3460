"""One evaluation writes to a file of results at a time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from conf.errors import bad_input, world_fault


@contextmanager
def only_writer(results: Path) -> Iterator[None]:
    """Holds a lock beside the file, whatever name or link it goes by; it ends with this process,
    however that ends. Raises where another process holds it. Reading needs no lock."""
    path = results.expanduser().resolve()
    if path.is_dir():
        raise bad_input(f"results={results}: is a folder; give the name of a file in it")
    missing = [folder for folder in path.parents if not folder.exists()]
    file = Path(f"{path}.lock")
    lock = FileLock(file, timeout=0)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        file.write_text(f"{os.getpid()}\n")
    except Timeout as error:
        raise world_fault(
            f"results={results}: another evaluation{_holder(file)} is writing to it; wait until it "
            "ends, or give this one another file with results=FILE"
        ) from error
    except OSError as error:
        lock.release()
        raise world_fault(f"results={results}: cannot be written ({error.strerror})") from error
    try:
        yield
    finally:
        file.unlink(missing_ok=True)  # first: whoever opened it before sees that it is gone
        lock.release()
        if not path.exists():
            for folder in missing:
                with suppress(OSError):  # something else was put there
                    folder.rmdir()


def _holder(file: Path) -> str:
    """Who holds the lock, as far as is known."""
    try:
        words = file.read_text().strip()
    except (OSError, ValueError):
        return ""
    return f" (process {words})" if words.isdigit() else ""
