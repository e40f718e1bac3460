"""What may be replaced, and that one run at a time writes a checkpoint."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conf.errors import QuantlineError
from quantize.checkpoint.publish import (
    check_destination,
    check_free,
    destination,
    locked,
    published_atomically,
)
from tests.conftest import ROOT, Run, quantize_config


def checkpoint(folder: Path, **manifest: object) -> Path:
    """A folder as a run leaves it, without weights in it."""
    folder.mkdir(parents=True)
    claimed = {"model.safetensors": "ab", "tokenizer.json": "cd", "config.json": ""}
    for name in (*claimed, "README.md", "generation_config.json"):
        (folder / name).write_text("{}")
    content = {"schema": 3, "recipe": folder.name, "files": claimed} | manifest
    (folder / "quantline.json").write_text(json.dumps(content))
    return folder


def content_of(root: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in sorted(root.rglob("*"))
    }


def is_file(folder: Path) -> None:
    folder.parent.mkdir(parents=True)
    folder.write_text("mine")


def is_link(folder: Path) -> None:
    folder.parent.mkdir(parents=True)
    folder.symlink_to(checkpoint(folder.parent / "elsewhere"))


def is_dangling(folder: Path) -> None:
    folder.parent.mkdir(parents=True)
    folder.symlink_to("nowhere")


def is_foreign(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "thesis.tex").write_text("years of work")


def is_empty(folder: Path) -> None:
    folder.mkdir(parents=True)


def is_plain_model(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_text("weights")


def with_notes(folder: Path) -> None:
    (checkpoint(folder) / "notes.txt").write_text("mine")


def with_folder(folder: Path) -> None:
    (checkpoint(folder) / "evaluation").mkdir()


def with_link(folder: Path) -> None:
    checkpoint(folder)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("/etc/hostname")


def with_another_json(folder: Path) -> None:
    checkpoint(folder)
    (folder / "quantline.json").write_text('{"title": "a file of somebody else"}')


def with_broken_manifest(folder: Path) -> None:
    checkpoint(folder)
    (folder / "quantline.json").write_text("{")


def with_manifest_folder(folder: Path) -> None:
    (folder / "quantline.json").mkdir(parents=True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (is_file, "is no folder"),
        (is_link, "is a symbolic link"),
        (is_dangling, "is a symbolic link"),
        (is_foreign, "is no checkpoint of ours"),
        (is_empty, "is no checkpoint of ours"),
        (is_plain_model, "is no checkpoint of ours"),
        (with_notes, r"would delete notes\.txt"),
        (with_folder, "would delete evaluation"),
        (with_link, r"would delete model\.safetensors"),
        (with_another_json, "is no manifest"),
        (with_broken_manifest, r"quantline\.json:1: no JSON"),
        (with_manifest_folder, "is no checkpoint of ours"),
    ],
)
def test_replace_deletes_nothing_but_a_checkpoint_of_ours(
    make: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    config = quantize_config("model=tiny", f"output_dir={tmp_path}", "replace=true")
    folder = destination(config)
    make(folder)
    before = content_of(tmp_path)
    with pytest.raises(QuantlineError, match=message) as error:
        check_destination(config)
    assert error.value.exit_code == 2
    with pytest.raises(QuantlineError, match=message), published_atomically(folder, replace=True):
        pass
    assert content_of(tmp_path) == before


def test_a_checkpoint_of_ours_is_replaced_when_asked(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "tiny" / "recipe")
    (folder / "chat_template.jinja").write_text("people may add one")
    check_free(folder, replace=True)
    with pytest.raises(QuantlineError, match="replace=true replaces it"):
        check_free(folder, replace=False)
    with published_atomically(folder, replace=True) as unfinished:
        (unfinished / "new").write_text("")
    assert [path.name for path in folder.iterdir()] == ["new"]
    assert [path.name for path in folder.parent.iterdir()] == ["recipe"]


def test_a_checkpoint_of_an_older_schema_is_replaced_when_asked(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "old")
    old = {"schema": 2, "recipe": "old"}
    (folder / "quantline.json").write_text(json.dumps(old))
    check_free(folder, replace=True)
    (folder / "photo.png").write_text("")
    with pytest.raises(QuantlineError, match=r"photo\.png"):
        check_free(folder, replace=True)


def test_what_appears_while_a_run_calibrates_is_not_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "recipe"
    with pytest.raises(QuantlineError, match="exists already"), published_atomically(folder):
        checkpoint(folder)
    assert (folder / "model.safetensors").read_text() == "{}"
    assert [path.name for path in tmp_path.iterdir()] == ["recipe"]


def test_the_source_is_never_the_destination(tmp_path: Path) -> None:
    source = tmp_path / "models" / "mine"
    source.mkdir(parents=True)
    inside = source / "w8a8_smooth_gptq" / "original"
    inside.mkdir(parents=True)
    for path, output in ((source, source), (inside, tmp_path / "models")):
        config = quantize_config(
            f"model.path={path}", f"output_dir={output}", "model.name=mine", "replace=true"
        )
        with pytest.raises(QuantlineError, match="the folder of the source model") as error:
            check_destination(config)
        assert error.value.exit_code == 2


def test_an_output_under_a_file_is_bad_input(tmp_path: Path, quantize_here: Run) -> None:
    (tmp_path / "out").write_text("a file")
    result = quantize_here("model=tiny", "output_dir=out/below")
    assert result.returncode == 2, result.stderr
    assert "output_dir=out/below: out is no folder" in result.stderr
    assert (tmp_path / "out").read_text() == "a file"


# ---- one run at a time ---------------------------------------------------------------------

HOLDER = """
import sys, time
from pathlib import Path
from quantize.checkpoint.publish import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def held(tmp_path: Path) -> "subprocess.Popen[str]":
    """A process that holds the lock of `tmp_path/tiny/recipe`."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "tiny" / "w8a8_smooth_gptq")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_run_says_so_and_a_dead_one_blocks_nobody(
    held: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    folder = tmp_path / "tiny" / "w8a8_smooth_gptq"
    try:
        expected = pytest.raises(
            QuantlineError, match=rf"another run \(process {held.pid}\) is writing it"
        )
        with expected as error, locked(folder):
            pass
        assert error.value.exit_code == 3
        assert str(folder) in str(error.value)
    finally:
        held.send_signal(signal.SIGKILL)
        held.wait()
    assert [path.name for path in folder.parent.iterdir()] == [".w8a8_smooth_gptq.lock"]
    with locked(folder):
        pass
    assert list(folder.parent.iterdir()) == []


def test_a_lock_is_gone_after_a_failure(tmp_path: Path) -> None:
    folder = tmp_path / "recipe"
    with pytest.raises(RuntimeError), locked(folder):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_was_killed_while_replacing_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    checkpoint(tmp_path / ".recipe.replaced")
    with locked(tmp_path / "recipe"):
        assert (tmp_path / "recipe" / "quantline.json").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["recipe"]
