"""A remembered verification holds for the same files, claims and verifying code only."""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from conf import ROOT
from conf.cache import cache_root
from conf.checkpoint_hash import checkpoint_hash
from conf.errors import QuantlineError
from conf.process.running import start
from conf.schema.load import EngineConfig
from conf.schema.model import ModelConfig
from quantize.checkpoint import manifest, verified_marks
from quantize.programs import VERIFY
from serve.checks import check, verify_together

DAMAGED = "model.layers.0.mlp.down_proj.weight_scale"


@pytest.fixture
def damaged(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(tiny_checkpoint, tmp_path / "damaged"))
    tensors = load_file(folder / "model.safetensors")
    tensors[DAMAGED].mul_(2)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of our packages that the verifier's hash is taken from."""
    for package in verified_marks.VERIFYING:
        shutil.copytree(ROOT / package, tmp_path / "sources" / package)
    monkeypatch.setattr(verified_marks, "ROOT", tmp_path / "sources")
    monkeypatch.setattr(verified_marks, "verifier", verified_marks.verifier.__wrapped__)
    return tmp_path / "sources"


def test_a_mark_of_other_code_lets_no_damaged_checkpoint_through(
    damaged: Path, tiny: tuple[ModelConfig, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(verified_marks, "verifier", lambda: "other code")
        other = verified_marks.mark(damaged)
    # What versions without hashes of the code wrote: the checkpoint's hash alone.
    oldest = cache_root() / "proven" / checkpoint_hash(damaged)
    other.parent.mkdir(parents=True, exist_ok=True)
    for mark in (other, oldest):
        mark.touch()
    with pytest.raises(QuantlineError, match=r"model\.safetensors"):
        check(damaged, tiny[1], EngineConfig())
    assert not verified_marks.mark(damaged).exists(), "a failure is not kept"


def test_any_change_of_a_verifying_module_is_another_verifier(sources: Path) -> None:
    before = verified_marks.verifier()
    assert before == verified_marks.verifier()
    for place in (
        "quantize/checkpoint/verify/prove.py",
        "quantize/checkpoint/manifest.py",
        "conf/models.py",
    ):
        path = sources / place
        content = path.read_text()
        path.write_text(content + "# changed\n")
        assert verified_marks.verifier() != before, place
        path.write_text(content)
    (sources / "quantize" / "more_checks.py").write_text("")
    assert verified_marks.verifier() != before


def test_another_version_of_a_library_is_another_verifier(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = verified_marks.verifier()
    monkeypatch.setattr("importlib.metadata.version", lambda name: "99")
    assert verified_marks.verifier() != before


def test_other_claims_need_another_verification(tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_checkpoint, tmp_path / "copy"))
    before = verified_marks.mark(folder)
    claims = folder / manifest.FILE
    claims.write_text(claims.read_text() + "\n")
    other = verified_marks.mark(folder)
    claims.unlink()
    assert len({before, other, verified_marks.mark(folder)}) == 3


def wait_for_the_next_tick(scratch: Path, after: int) -> None:
    """Files that are written within one tick of the kernel's clock have the same time."""
    scratch.touch()
    while scratch.stat().st_ctime_ns <= after:
        scratch.touch()


def test_a_file_that_was_changed_and_dated_back_is_hashed_again(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_checkpoint, tmp_path / "copy"))
    weights = folder / "model.safetensors"
    before, stat = checkpoint_hash(folder), weights.stat()
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    wait_for_the_next_tick(tmp_path / "clock", stat.st_ctime_ns)
    weights.write_bytes(bytes(content))
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert weights.stat().st_mtime_ns == stat.st_mtime_ns
    assert checkpoint_hash(folder) != before


@pytest.mark.parametrize(("cores", "processes"), [(1, 1), (8, 2)])
def test_checkpoints_verified_together_are_remembered_unless_they_are_damaged(
    cores: int,
    processes: int,
    tiny_checkpoint: Path,
    damaged: Path,
    tiny: tuple[ModelConfig, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("QUANTLINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", str(cores))
    started = []

    def starting(*arguments: Any) -> Any:
        started.append(arguments)
        assert os.environ.items() - arguments[-1].items() <= {("OMP_NUM_THREADS", str(cores))}
        return start(*arguments)

    monkeypatch.setattr("serve.checks.start", starting)
    unreadable = Path(shutil.copytree(tiny_checkpoint, tmp_path / "unreadable"))
    (unreadable / "model.safetensors").write_bytes(b"no weights")
    (tmp_path / "empty").mkdir()
    original = tiny[1]
    folders = [original, unreadable, damaged, tiny_checkpoint, tmp_path / "empty"]
    verify_together(folders)
    assert "verifying 3 checkpoints, once: 0 of 3" in capsys.readouterr().err
    assert len(started) == processes
    proven = [
        folder
        for folder in (unreadable, damaged, tiny_checkpoint)
        if verified_marks.mark(folder).is_file()
    ]
    assert proven == [tiny_checkpoint]
    with pytest.raises(QuantlineError, match=r"model\.safetensors"):
        check(damaged, original, EngineConfig())
    # One that is left is not worth a process of its own.
    verify_together([original, damaged, tiny_checkpoint])
    assert "verifying" not in capsys.readouterr().err


def test_what_quantize_has_proven_is_not_verified_again_here(
    tiny_checkpoint: Path, damaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert verified_marks.mark(tiny_checkpoint).is_file()
    assert not verified_marks.mark(damaged).is_file()
    monkeypatch.setenv("QUANTLINE_CACHE", str(tmp_path / "another machine"))
    assert not verified_marks.mark(tiny_checkpoint).is_file()


def test_a_verifying_process_that_dies_leaves_its_work_to_the_check_of_each(
    damaged: Path,
    tiny_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("QUANTLINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("serve.checks.VERIFY", replace(VERIFY, module="quantize.no_such_part"))
    verify_together([damaged, tiny_checkpoint])
    told = capsys.readouterr().err
    assert "what it had left is verified one by one" in told
    assert [path.name for path in (tmp_path / "cache" / "logs").iterdir()], "what it said is kept"
    assert not verified_marks.mark(tiny_checkpoint).is_file()
