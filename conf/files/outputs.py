"""Checks where a command writes before it works: a bad path is named at once, not at the end."""

from pathlib import Path

from conf.errors import bad_input


def check_file(option: str, path: Path) -> None:
    """Raises where no file can be written to the path that the option names."""
    if path.is_dir():
        raise bad_input(f"{option}={path}: is a folder; give the name of a file in it")
    _check_parents(option, path)


def check_folder(option: str, path: Path) -> None:
    """Raises where the path that the option names cannot be a folder."""
    if (path.exists() or path.is_symlink()) and not path.is_dir():
        raise bad_input(f"{option}={path}: is no folder; give the name of one")
    _check_parents(option, path)


def _check_parents(option: str, path: Path) -> None:
    nearest = next(folder for folder in path.absolute().parents if folder.exists())
    if not nearest.is_dir():
        raise bad_input(f"{option}={path}: {nearest} is no folder")


def is_same_file(one: Path, other: Path) -> bool:
    """Whether both paths lead to one file, which need not exist."""
    return one.resolve() == other.resolve() or (
        one.exists() and other.exists() and one.samefile(other)
    )
