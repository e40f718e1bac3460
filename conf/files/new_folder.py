"""Makes a folder for the time of a block, which may fail before it writes anything."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Makes the folder and those above it. At the end, those that were made and are still empty are
    removed: a failure leaves none behind."""
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    finally:
        remove_empty(made)


def remove_empty(folders: list[Path]) -> None:
    """Removes those of the folders, the innermost first, that hold nothing."""
    for folder in folders:
        with suppress(OSError):  # it holds something, or another process has removed it
            folder.rmdir()
