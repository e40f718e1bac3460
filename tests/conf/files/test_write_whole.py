"""A file or folder is there whole or not at all, whatever happens while it is written."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from time import sleep

import pytest

from conf.errors import QuantlineError
from conf.files.write_whole import recover, unfinished_path, write_once, write_whole


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "new" / "view.npz"
    with write_whole(path) as unfinished:
        unfinished.write_text("content")
        assert unfinished.suffix == path.suffix
        assert not path.exists()
    assert path.read_text() == "content"
    assert names(path.parent) == ["view.npz"]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def write_half() -> None:
        with write_whole(path) as unfinished:
            unfinished.write_text("half")
            raise ValueError("no space")

    with pytest.raises(ValueError, match="no space"):
        write_half()
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_a_folder_replaces_one_that_is_not_empty(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    (path / "old").touch()
    with write_whole(path) as unfinished:
        unfinished.mkdir()
        (unfinished / "new").touch()
    assert names(path) == ["new"]
    assert names(tmp_path) == ["folder"]


def test_a_file_never_replaces_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    (path / "old").touch()
    with pytest.raises(QuantlineError, match="is a folder"), write_whole(path) as unfinished:
        unfinished.write_text("content")
    assert names(path) == ["old"]
    assert names(tmp_path) == ["folder"]


def test_processes_that_need_one_file_write_it_once(tmp_path: Path) -> None:
    """Two jobs on one machine share the cache: neither removes what the other has begun."""
    path = tmp_path / "cache" / "file"
    began = Barrier(2)
    written: list[str] = []

    def write(unfinished: Path) -> None:
        sleep(0.05)  # the other one has time to meddle
        unfinished.write_text("content")
        written.append("content")

    def need() -> str:
        began.wait()
        write_once(path, write)
        return path.read_text()

    with ThreadPoolExecutor() as jobs:
        assert [job.result() for job in [jobs.submit(need), jobs.submit(need)]] == ["content"] * 2
    assert written == ["content"]


def test_a_folder_that_was_never_written_keeps_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    (path / "old").touch()
    with pytest.raises(FileNotFoundError), write_whole(path):
        pass
    assert names(path) == ["old"]


def test_leftovers_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    unfinished_path(path).mkdir()
    (unfinished_path(path) / "half").touch()
    with write_whole(path) as unfinished:
        unfinished.mkdir()
    assert names(path) == []


def test_a_run_killed_between_the_moves_is_undone(tmp_path: Path) -> None:
    path, backup = tmp_path / "folder", tmp_path / ".folder.replaced"
    backup.mkdir()
    recover(path)
    assert path.is_dir()
    backup.mkdir()
    recover(path)  # the new folder is complete: the backup is not needed
    assert backup.is_dir()
