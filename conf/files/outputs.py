"""Checks where a command writes before it works: a bad path is named at once, not at the end."""

import errno
import os
import tempfile
from pathlib import Path

from conf.cache import CACHE, cache_root
from conf.errors import QuantlineError, bad_input, environment_failure

# Another path would do: the machine itself lacks nothing.
REFUSED = frozenset(
    {
        errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EEXIST,
        errno.ENAMETOOLONG, errno.ELOOP,
    }
)  # fmt: skip


def check_file(option: str, path: Path) -> None:
    """Raises where no file can be written to the path that the option names."""
    if path.is_dir():
        raise bad_input(f"{option}={path}: is a folder; give the name of a file in it")
    _check_parents(option, path, path.parent)


def check_folder(option: str, path: Path) -> None:
    """Raises where the path that the option names cannot be a folder that files are written to."""
    if (path.exists() or path.is_symlink()) and not path.is_dir():
        raise bad_input(f"{option}={path}: is no folder; give the name of one")
    _check_parents(option, path, path)


def check_cache() -> None:
    """Raises where nothing can be written to the cache."""
    root = cache_root()
    try:
        check_folder(CACHE, root)
    except QuantlineError as error:
        if os.environ.get(CACHE):
            raise
        reason = str(error).removeprefix(f"{CACHE}={root}: ")
        message = f"the cache folder {root}: {reason}; name another one with {CACHE}=FOLDER"
        raise QuantlineError(message, error.exit_code) from error


def _check_parents(option: str, path: Path, folder: Path) -> None:
    """Writes a file for a moment into the folder, or into the nearest one that is there. The
    permissions alone do not tell: a file system may be read-only, or take no files at all."""
    folder = folder.absolute()
    nearest = next(place for place in (folder, *folder.parents) if place.exists())
    if not nearest.is_dir():
        raise bad_input(f"{option}={path}: {nearest} is no folder")
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        raise not_writable(f"{option}={path}", error, nearest) from error


def not_writable(what: str, error: OSError, folder: Path | None = None) -> QuantlineError:
    """The error for a path that an option names: bad input where another path would do, else an
    environment error, as a full disk."""
    kind = bad_input if error.errno in REFUSED else environment_failure
    place = f"{folder} " if folder is not None else ""
    return kind(f"{what}: {place}cannot be written ({error.strerror})")


def is_same_file(one: Path, other: Path) -> bool:
    """Whether both paths lead to one file, which need not exist."""
    return one.resolve() == other.resolve() or (
        one.exists() and other.exists() and one.samefile(other)
    )
