"""A lock: only one evaluation at a time writes to a results file."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from conf.errors import bad_input, environment_failure
from conf.files.lock_holder import holder, write_holder
from conf.files.new_folder import remove_empty
from conf.files.outputs import not_writable
from evaluate.results.json_lines import is_packed


@contextmanager
def only_writer(results: Path) -> Iterator[None]:
    """Holds a lock file beside the results file, with links resolved. The lock ends with this
    process, also after a crash. Raises if another process holds it. Reading needs no lock."""
    check_results_file(results)
    path = results.expanduser().resolve()
    if is_packed(path):
        raise bad_input(f"results={results}: is packed with gzip, so nothing can be added to it")
    new_folders = [folder for folder in path.parents if not folder.exists()]
    lock_file = Path(f"{path}.lock")
    lock = FileLock(lock_file, timeout=0)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        lock.acquire()
        write_holder(lock_file)
    except Timeout as error:
        raise environment_failure(
            f"results={results}: another evaluation{holder(lock_file)} is writing to it; wait "
            "until it ends, or give this one another file with results=FILE"
        ) from error
    except OSError as error:
        lock.release()
        raise not_writable(f"results={results}", error) from error
    try:
        yield
    finally:
        # Before the release: a process that opened the lock file sees that it is gone.
        lock_file.unlink(missing_ok=True)
        lock.release()
        remove_empty(new_folders)


def check_results_file(results: Path) -> None:
    """Raises where the path is there, and no plain file. Opening a pipe would wait forever."""
    try:
        mode = results.expanduser().stat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise not_writable(f"results={results}", error) from error
    if stat.S_ISDIR(mode):
        raise bad_input(f"results={results}: is a folder; give the name of a file in it")
    if not stat.S_ISREG(mode):
        raise bad_input(f"results={results}: is a pipe, socket or device; give the name of a file")
