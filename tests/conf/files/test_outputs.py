"""A path that cannot be written is named before the work. /proc takes no files, even from root."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conf.errors import QuantlineError
from conf.files.lock_holder import holder, write_holder
from conf.files.outputs import check_cache, check_file, check_folder, not_writable
from evaluate.results.lock import only_writer
from tests.conftest import Run


def test_a_folder_that_takes_no_files(tmp_path: Path) -> None:
    check_file("out", tmp_path / "new" / "file")
    check_folder("out", tmp_path / "new")
    assert list(tmp_path.iterdir()) == []
    for check in (check_file, check_folder):
        with pytest.raises(QuantlineError, match=r"^out=/proc/x/y: /proc cannot be wri") as caught:
            check("out", Path("/proc/x/y"))
        assert caught.value.exit_code == 2


def test_a_full_disk_is_no_bad_input() -> None:
    assert not_writable("out=x", OSError(28, "No space left on device")).exit_code == 3
    assert not_writable("out=x", OSError(30, "Read-only file system")).exit_code == 2


def test_the_cache_is_named_by_its_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("QUANTLINE_CACHE", "/proc/x")
    with pytest.raises(QuantlineError, match=r"^QUANTLINE_CACHE=/proc/x: /proc cannot be written"):
        check_cache()
    monkeypatch.delenv("QUANTLINE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/x")
    with pytest.raises(QuantlineError, match="name another one with QUANTLINE_CACHE=FOLDER"):
        check_cache()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    check_cache()


@pytest.mark.parametrize(
    "words",
    [
        ("quantize", "model=tiny", "output_dir=/proc/x"),
        ("quantize", "model=tiny", "output_dir=/proc/x", "preflight=only"),
        ("evaluate", "model=tiny", "results=/proc/x/results.jsonl"),
        ("evaluate.tune", "model=tiny", "out=/proc/x/serve.yaml", "scenario=interactive"),
        ("evaluate.report", "out=/proc/x"),
        ("evaluate.kernels", "grid=vptq", "out=/proc/x"),
    ],
)
def test_commands_refuse_it_at_once(words: tuple[str, ...], command_here: Run) -> None:
    result = command_here(*words)
    assert result.returncode == 2
    option = next(word for word in words if "/proc" in word)
    assert result.stderr.startswith(f"error: {option}: ")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("module", ["quantize", "evaluate", "serve", "evaluate.merge"])
def test_commands_refuse_a_cache_that_takes_no_files(module: str, command_here: Run) -> None:
    result = command_here(module, QUANTLINE_CACHE="/proc/x")
    assert result.returncode == 2
    assert result.stderr.startswith("error: QUANTLINE_CACHE=/proc/x: ")
    assert len(result.stderr.splitlines()) == 1


def test_a_config_is_shown_without_a_cache(command_here: Run) -> None:
    assert command_here("quantize", "--cfg", "job", QUANTLINE_CACHE="/proc/x").returncode == 0


def test_a_results_file_that_may_not_be_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.jsonl"
    path.touch()
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may change every file
    expected = pytest.raises(QuantlineError, match=r"cannot be written .Permission denied")
    with expected as caught, only_writer(path):
        pass
    assert caught.value.exit_code == 2


def test_the_holder_of_a_lock(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    assert holder(file) == ""
    write_holder(file)
    assert holder(file) == f" (process {os.getpid()})"
    file.write_text("no number")
    assert holder(file) == ""


def test_a_full_disk_leaves_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fail)
    expected = pytest.raises(QuantlineError, match=r"cannot be written .No space left")
    with expected, only_writer(tmp_path / "new" / "results.jsonl"):
        pass
    assert list(tmp_path.rglob("*.lock")) == []


def test_a_path_that_is_too_long(command_here: Run) -> None:
    result = command_here("quantize", "model=tiny", f"output_dir={'x' * 300}")
    assert result.returncode == 2
    assert "is too long for a path" in result.stderr


WRITER = """
import sys
from pathlib import Path
from conf.files.write_whole import write_alone
for number in range(200):
    with write_alone(Path(sys.argv[1])) as unfinished:
        unfinished.write_text(sys.argv[2] * 1000)
"""


def test_two_processes_may_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    command = [sys.executable, "-c", WRITER, str(path)]
    both = [subprocess.Popen([*command, letter], stderr=subprocess.PIPE) for letter in "ab"]
    for process in both:
        _, words = process.communicate()
        assert process.returncode == 0, words
    assert path.read_text() in ("a" * 1000, "b" * 1000)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
