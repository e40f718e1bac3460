"""`push=ORG/NAME` against a stand-in for the hub: what is uploaded, and what a fault leaves."""

import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quantize.checkpoint.manifest import FILE, read
from tests.conftest import Result, Run
from tests.quantize.checkpoint.hub_server import TOKEN, Hub, Repository, running_hub

MADE_WITH = ("model=tiny", "calibration.samples=8", "calibration.length=128")
REPOSITORY = "team/tiny-w8a8"
Push = Callable[..., Result]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    # The stand-in has no Xet storage; the library then uses Git LFS.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))
    with running_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield hub


@pytest.fixture
def checkpoint(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """A finished checkpoint where the commands of these tests put theirs."""
    folder = tmp_path / "checkpoints" / "tiny" / tiny_checkpoint.name
    shutil.copytree(tiny_checkpoint, folder)
    return folder


@pytest.fixture
def push(quantize_here: Run) -> Push:
    return lambda *options: quantize_here(*MADE_WITH, f"push={REPOSITORY}", *options)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_a_finished_checkpoint_is_uploaded_whole_and_privately(
    hub: Hub, checkpoint: Path, push: Push
) -> None:
    before = content(checkpoint)
    (checkpoint.parent / "notes.txt").write_text("ours")
    result = push()
    assert result.returncode == 0, result.stderr
    repository = hub.repositories[REPOSITORY]
    assert repository.visibility == "private"
    assert repository.commits == ["tiny, w8a8_smooth_gptq (Quantline 0.1.0)"]
    assert repository.files == {**before, ".gitattributes": b""}
    assert repository.files["README.md"].startswith(b"---\nbase_model: tiny")
    assert content(checkpoint) == before
    assert hub.tokens <= {f"Bearer {TOKEN}", ""}
    assert f"push={REPOSITORY}: {hub.url}/{REPOSITORY}" in result.stderr
    assert TOKEN not in result.stderr + result.stdout


@pytest.mark.slow
def test_another_checkpoint_leaves_no_stale_weights_and_public_is_an_option(
    hub: Hub, checkpoint: Path, push: Push
) -> None:
    stale = {FILE: b"{}", "model-00001-of-00002.safetensors": b"old", "LICENSE": b"theirs"}
    hub.repositories[REPOSITORY] = Repository("private", dict(stale))
    assert push("push_private=false").returncode == 0
    assert hub.repositories[REPOSITORY].visibility == "private"  # it existed
    expected = {**content(checkpoint), "LICENSE": b"theirs"}
    assert hub.repositories[REPOSITORY].files == expected
    del hub.repositories[REPOSITORY]
    assert push("push_private=false").returncode == 0
    assert hub.repositories[REPOSITORY].visibility == "public"


@pytest.mark.slow
def test_the_model_of_somebody_else_is_not_touched(hub: Hub, checkpoint: Path, push: Push) -> None:
    theirs = {"model.safetensors": b"theirs", "config.json": b"{}"}
    hub.repositories[REPOSITORY] = Repository("public", dict(theirs))
    result = push()
    assert result.returncode == 2
    assert "holds a model that is not ours" in result.stderr
    assert hub.repositories[REPOSITORY].files == theirs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "fault", "expected"),
    [
        ("repos/create", (403, "not allowed"), "the hub refuses the token (HTTP 403: not allowed"),
        ("/preupload/", (404, "no such"), "the hub answered HTTP 404"),
        ("/lfs/objects/batch", (400, "too large"), "the hub answered HTTP 400 (too large"),
        ("/commit/", (403, "read only"), "the hub refuses the token (HTTP 403: read only"),
    ],
)
def test_a_fault_of_the_hub_loses_nothing(
    hub: Hub,
    checkpoint: Path,
    push: Push,
    command_here: Run,
    path: str,
    fault: tuple[int, str],
    expected: str,
) -> None:
    before = content(checkpoint)
    hub.faults[path] = fault
    result = push()
    assert result.returncode == 3
    message = result.stderr.splitlines()[-1]
    assert message.startswith(f"error: push={REPOSITORY}: {expected}")
    assert content(checkpoint) == before
    hub.faults.clear()
    printed = shlex.split(message.partition("push it again with: ")[2])
    again = command_here(*printed[2:])
    assert again.returncode == 0, again.stderr
    assert set(hub.repositories[REPOSITORY].files) >= set(before)


@pytest.mark.slow
def test_quantizing_ends_with_the_upload(hub: Hub, quantize_here: Run, tmp_path: Path) -> None:
    """A fault after hours of work: the printed command uploads what was made."""
    hub.faults["/commit/"] = (403, "read only")
    options = ("model=tiny", "recipe=fp8_dynamic", f"push={REPOSITORY}", "replace=true")
    failed = quantize_here(*options)
    assert failed.returncode == 3
    folder = tmp_path / "checkpoints" / "tiny" / "fp8_dynamic"
    before = content(folder)
    assert read(folder).recipe == "fp8_dynamic"
    command = failed.stderr.splitlines()[-1].partition("push it again with: ")[2]
    assert command == f"python -m quantize model=tiny recipe=fp8_dynamic push={REPOSITORY}"
    hub.faults.clear()
    pushed = quantize_here(*shlex.split(command)[3:])
    assert pushed.returncode == 0, pushed.stderr
    assert "proven" not in pushed.stderr  # nothing is made again
    assert content(folder) == before
    assert hub.repositories[REPOSITORY].files == {**before, ".gitattributes": b""}


@pytest.mark.slow
def test_a_damaged_checkpoint_is_not_uploaded(hub: Hub, checkpoint: Path, push: Push) -> None:
    weights = checkpoint / "model.safetensors"
    damaged = bytearray(weights.read_bytes())
    damaged[-1] ^= 1
    weights.write_bytes(damaged)
    result = push()
    assert result.returncode == 4
    assert "is not pushed, it has" in result.stderr
    assert hub.repositories == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "part"),
    [
        ("recipe.smoothquant.smoothing_strength=0.5", "recipe"),
        ("calibration.seed=1", "calibration"),
        ("model.seed=1", "model"),
    ],
)
def test_another_config_does_not_push_what_exists(
    hub: Hub, checkpoint: Path, push: Push, option: str, part: str
) -> None:
    result = push(option)
    assert result.returncode == 2
    assert f"exists already, made with another {part}; replace=true" in result.stderr
    assert hub.repositories == {}


@pytest.mark.parametrize(
    "name", ["tiny", "team/", "team/a/b", "team/-a", "team/a..b", "team/a b", "team/a.git", "t/é"]
)
def test_a_bad_name_is_refused_before_any_work(hub: Hub, quantize_here: Run, name: str) -> None:
    result = quantize_here("model=tiny", f"push='{name}'")
    assert result.returncode == 2
    assert result.stderr.startswith(f"error: push={name}: write ORG/NAME")
    assert hub.tokens == set()


def test_no_token_is_told_before_any_work(
    hub: Hub, quantize_here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    result = quantize_here("model=tiny", f"push={REPOSITORY}")
    assert result.returncode == 2
    assert "there is no token for the hub; set HF_TOKEN" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("is_down", [False, True])
def test_a_refused_token_and_no_network_are_told_before_any_work(
    hub: Hub, quantize_here: Run, is_down: bool
) -> None:
    hub.faults["whoami"] = (401, "Invalid credentials")
    variables = {"HF_ENDPOINT": "http://127.0.0.1:9"} if is_down else {}
    result = quantize_here("model=tiny", f"push={REPOSITORY}", **variables)
    assert result.returncode == 3
    expected = "the hub could not be reached" if is_down else "the hub refuses the token (HTTP 401"
    assert result.stderr.startswith(f"error: push={REPOSITORY}: {expected}")
    assert len(result.stderr.splitlines()) == 1


def test_nothing_is_uploaded_by_default(quantize_here: Run) -> None:
    shown = quantize_here("--cfg", "job").stdout
    assert "\npush: null\npush_private: true\n" in shown
