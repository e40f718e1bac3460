"""A checkpoint is filled beside its place and moved there whole, so that none is ever half."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conf.errors import bad_input, world_fault
from conf.schema import QuantizeConfig

DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)


def destination(config: QuantizeConfig) -> Path:
    """The checkpoint's folder."""
    return Path(config.output_dir).expanduser() / str(config.model.name) / config.recipe.name


def may_publish(config: QuantizeConfig) -> None:
    """Stops where a checkpoint exists that may not be replaced."""
    folder = destination(config)
    if folder.exists() and not config.replace and config.preflight != "only":
        raise bad_input(f"{folder}: exists already; replace=true makes it anew")


@contextmanager
def published_whole(folder: Path) -> Iterator[Path]:
    """A folder to fill; it takes the place of `folder` only once the block ends well."""
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        unfinished.mkdir(parents=True)
        yield unfinished
        _swap(unfinished, folder)
    except OSError as error:
        if error.errno not in DISK_FAULTS:
            raise  # of reading something else; not this folder's fault
        raise world_fault(f"{folder}: could not be written ({error})") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _swap(unfinished: Path, folder: Path) -> None:
    old = folder.with_name(f".{folder.name}.replaced")
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
        folder.replace(old)
    try:
        unfinished.replace(folder)
    except BaseException:
        if old.exists():
            old.replace(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)
