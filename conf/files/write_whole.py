"""Writes a file or folder whole: under a temporary name beside it, which is then moved.

A reader, or a run after a crash, sees the old content or the new one, never a part of it.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from conf.errors import bad_input
from conf.files.new_folder import new_folder


@contextmanager
def write_whole(path: Path) -> Iterator[Path]:
    """Yields the temporary path for a file or folder; it becomes `path` only if the block succeeds.
    Its name is always the same, so that the next run removes what a killed one left. The caller
    holds a lock where two processes may write the same path."""
    unfinished = unfinished_path(path)
    remove(unfinished)
    with new_folder(path.parent):
        try:
            yield unfinished
            finish(path)
        finally:
            remove(unfinished)


@contextmanager
def write_alone(path: Path) -> Iterator[Path]:
    """`write_whole` for a file that several processes may write: each waits for the one before."""
    lock_file = path.with_name(f".{path.name}.lock")
    with new_folder(path.parent), FileLock(lock_file):
        try:
            with write_whole(path) as unfinished:
                yield unfinished
        finally:
            lock_file.unlink(missing_ok=True)


def write_once(
    path: Path,
    write: Callable[[Path], object],
    is_written: Callable[[Path], bool] = Path.exists,
) -> None:
    """Writes a file or folder of the cache, unless it is there. Processes that need it at the same
    time wait for the one that writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        if not is_written(path):
            with write_whole(path) as unfinished:
                write(unfinished)


def unfinished_path(path: Path) -> Path:
    """The temporary path. It has the same suffix, because some libraries add a missing one."""
    return path.with_name(f".unfinished-{path.name}")


def finish(path: Path) -> None:
    """Moves a complete file or folder from its temporary path. An old folder is moved aside first,
    because only an empty one can be overwritten. A file never replaces a folder."""
    unfinished, backup = unfinished_path(path), _backup_path(path)
    if path.is_dir() and not path.is_symlink():
        if unfinished.is_file():
            raise bad_input(f"{path}: is a folder, and a file is to be written there")
        remove(backup)
        path.replace(backup)
    try:
        unfinished.replace(path)
    except BaseException:
        recover(path)
        raise
    remove(backup)


def recover(path: Path) -> None:
    """Restores the old folder if its replacement did not finish."""
    backup = _backup_path(path)
    if backup.is_dir() and not path.exists():
        backup.replace(path)


def _backup_path(path: Path) -> Path:
    """Where the old folder is while the new one replaces it."""
    return path.with_name(f".{path.name}.replaced")


def remove(path: Path) -> None:
    """Removes a file, link or folder, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
