"""Full disks, refused writes and damaged kept layers: exit 3 with the path, or done again."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from conf.app import report
from conf.errors import QuantlineError, environment_reason, reading, writing
from conf.terminal import library_output_to, progress
from quantize.calibrate.resume import LayerNotes, WorkFolder, host_tensors
from quantize.calibrate.run_state import Run
from quantize.calibrate.sequential import _Passes
from quantize.checkpoint.publish import locked, published_atomically
from quantize.steps.base.step import steps_named
from tests.conftest import ROOT

REFUSED = ["ENOSPC", "EDQUOT", "EROFS", "EACCES", "EMFILE", "EIO", "EFBIG", "EPERM", "ENFILE"]
NOTES = LayerNotes(errors={}, fallbacks=[])


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_machine_refuses_is_exit_3_with_path_and_reason(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    number = getattr(errno, name)
    plain = OSError(number, "as the system says it")
    rust = SafetensorError(f"Error while serializing: I/O error: text (os error {number})")
    wrapped = RuntimeError("a library's own words")
    wrapped.__cause__ = plain
    for error in (plain, rust, wrapped):
        assert report(error) == 3
        with pytest.raises(QuantlineError) as said, published_atomically(tmp_path / "out"):
            raise error
        assert said.value.exit_code == 3
        assert f"{tmp_path / 'out'}: could not be written" in str(said.value)
        with pytest.raises(QuantlineError) as said, reading("config.json"):
            raise error
        assert said.value.exit_code == 3
    assert list(tmp_path.iterdir()) == []
    assert "Traceback" not in capsys.readouterr().err


def test_other_errors_are_not_the_machines(tmp_path: Path) -> None:
    assert environment_reason(FileNotFoundError(errno.ENOENT, "no such file")) is None
    assert environment_reason(ValueError("(os error 2)")) is None
    assert environment_reason(RuntimeError("shapes cannot be multiplied")) is None
    assert environment_reason(MemoryError())
    with pytest.raises(ValueError, match="ours"), writing(tmp_path):
        raise ValueError("ours")
    with pytest.raises(QuantlineError, match="x: 'y' is not known") as error, reading("x"):
        raise KeyError("y")
    assert error.value.exit_code == 2


def test_a_full_log_is_named_and_the_terminal_comes_back(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.symlink_to("/dev/full")
    before = os.fstat(1)
    expected = pytest.raises(QuantlineError, match=r"run\.log: could not be written")
    with expected as error, library_output_to(log):
        os.write(1, b"chatter")
    assert error.value.exit_code == 3
    assert os.fstat(1).st_ino == before.st_ino


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
from conf.app import report
from pathlib import Path
import torch
from quantize.calibrate.resume import LayerNotes, WorkFolder, host_tensors
try:
    work = WorkFolder(Path(sys.argv[1]), {})
    tensors = host_tensors({"m": torch.nn.Linear(200, 200)})
    work.write(0, 0, tensors, LayerNotes(errors={}, fallbacks=[]))
except Exception as error:
    sys.exit(report(error))
"""


def test_a_kept_layer_that_does_not_fit_on_the_disk(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "work")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert result.returncode == 3, result.stderr
    assert f"{tmp_path / 'work'}: could not be written (File too large" in result.stderr


def test_a_folder_that_cannot_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    expected = pytest.raises(QuantlineError, match=r"recipe: could not be written .Read-only")
    with expected as error, locked(tmp_path / "recipe"):
        pass
    assert error.value.exit_code == 3
    with pytest.raises(QuantlineError, match=r"work: could not be written .Read-only"):
        WorkFolder(tmp_path / "work", {})


# ---- kept layers ---------------------------------------------------------------------------


def kept(tmp_path: Path) -> tuple[WorkFolder, dict[str, torch.nn.Module], Path]:
    work = WorkFolder(tmp_path / "work", {})
    modules: dict[str, torch.nn.Module] = {"m": torch.nn.Linear(4, 4)}
    work.write(0, 0, host_tensors(modules), NOTES)
    return work, modules, next(work.folder.glob("step*"))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def garbage(path: Path) -> None:
    path.write_bytes(b"\xff" * 300)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def rewritten(**changes: Any) -> Callable[[Path], None]:
    """Other tensors, or other notes, in an otherwise whole file."""

    def damage(path: Path) -> None:
        tensors = {"m.weight": torch.ones(4, 4), "m.bias": torch.ones(4)}
        tensors |= changes.get("tensors", {})
        notes = changes.get("notes", NOTES.model_dump_json())
        metadata = {"notes": str(notes)} if notes is not None else None
        tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        save_file(tensors, path, metadata=metadata)

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        cut,
        garbage,
        empty,
        folder,
        rewritten(tensors={"m.weight": torch.ones(4, 3)}),
        rewritten(tensors={"m.weight": torch.ones(4, 4, dtype=torch.float16)}),
        rewritten(tensors={"m.weight": torch.full((4, 4), float("nan"))}),
        rewritten(tensors={"m.weight": None}),
        rewritten(tensors={"m.bias": None}),
        rewritten(notes=None),
        rewritten(notes="{"),
        rewritten(notes="[]"),
        rewritten(notes='{"errors": {"m": 1}, "fallbacks": []}'),
    ],
)
def test_a_kept_layer_that_cannot_be_read_counts_as_not_done(
    damage: Callable[[Path], None], tmp_path: Path
) -> None:
    work, modules, path = kept(tmp_path)
    assert work.fits(0, 0, modules)
    damage(path)
    again = WorkFolder(work.folder, {})
    assert not again.fits(0, 0, modules)
    again.start_over()
    assert not again.has(0, 0)
    again.write(0, 0, host_tensors(modules), NOTES)
    assert again.fits(0, 0, modules)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[]", b"{}"])
def test_a_work_folder_with_another_key_starts_over(content: bytes, tmp_path: Path) -> None:
    work, _, _ = kept(tmp_path)
    (work.folder / "key.json").write_bytes(content)
    same = content == b"{}"
    assert WorkFolder(work.folder, {}).has(0, 0) == same


def test_a_file_in_place_of_the_work_folder_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "work").write_text("")
    assert not WorkFolder(tmp_path / "work", {}).has(0, 0)


@pytest.mark.parametrize(
    ("steps", "name", "left"),
    [(["gptq"], "gptq", 1), (["autoround"], "autoround", 0), (["sparsegpt", "gptq"], "gptq", 0)],
)
def test_a_damaged_layer_and_those_behind_it_are_done_again(
    steps: list[str], name: str, left: int, tmp_path: Path
) -> None:
    """Where later steps were kept too, everything is."""
    work, modules, _ = kept(tmp_path)
    work.write(0, 1, host_tensors(modules), NOTES)
    cut(work._file(0, 1))
    passes = object.__new__(_Passes)
    passes.state = Run(steps_named(steps), progress(), torch.float32, work)
    passes.step, passes.number = steps_named([name])[0], 0
    passes._modules = lambda subgraph: modules  # type: ignore[method-assign]
    assert passes._finished_layers([None, None, None]) == left
    assert work.has(0, 0) == (len(steps) == 1)
