"""Killed, out of disk, out of memory: nothing half is published, and a rerun goes on."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from conf.errors import QuantlineError
from quantize.calibrate.memory.activations import Activations
from quantize.calibrate.memory.weights import LayerWeights
from quantize.calibrate.resume import LayerNotes, WorkFolder, host_tensors
from quantize.calibrate.sequential import _named_out_of_memory
from quantize.checkpoint import manifest
from quantize.pipeline import quantize
from tests.conftest import ROOT, Run, quantize_config
from tests.quantize.calibrate.memory.test_activations import LateCopies
from tests.quantize.calibrate.memory.test_weights import CloningLoader

STEPS = "w8a8_sparse_smooth_gptq"
OPTIONS = ["model=tiny", "calibration.samples=4", "calibration.length=64", "output_dir=out"]
# Runs the command and dies by SIGKILL at the moment that the third argument names.
KILLER = """
import os, runpy, signal, sys
moment, *sys.argv[1:] = sys.argv[1:]
def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
if moment == "layer":
    from quantize.calibrate.resume import WorkFolder
    kept = WorkFolder.write
    def write(self, step, layer, *rest):
        kept(self, step, layer, *rest)
        if (step, layer) == (int(os.environ["STEP"]), 1): die()
    WorkFolder.write = write
elif moment == "rename":
    from quantize.calibrate import resume
    kept = resume._write
    def write(path, save):
        if path.name == f"step{os.environ['STEP']}-layer0001.safetensors":
            save(path.with_name("." + path.name))
            die()
        kept(path, save)
    resume._write = write
else:
    import quantize.checkpoint.save
    quantize.checkpoint.save._make_readable_by_all = die
sys.argv[0] = "quantize"
runpy.run_module("quantize", run_name="__main__")
"""


def killed(tmp_path: Path, moment: str, *options: str, **variables: str) -> None:
    command = [sys.executable, "-c", KILLER, moment, *OPTIONS, *options]
    environment = os.environ | variables | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, check=False
    )
    assert result.returncode == -signal.SIGKILL, result.stderr.decode()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run gives that nobody kills."""
    root = tmp_path_factory.mktemp("undisturbed")
    folder = quantize(quantize_config(*OPTIONS[:-1], f"output_dir={root}", f"recipe={STEPS}"))
    assert folder is not None
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("moment", "step"), [("layer", "0"), ("layer", "2"), ("rename", "2")])
def test_killed_in_a_layer_a_rerun_goes_on_and_gives_the_same_bytes(
    moment: str, step: str, tmp_path: Path, undisturbed: Path, quantize_here: Run
) -> None:
    killed(tmp_path, moment, f"recipe={STEPS}", STEP=step)
    folder = tmp_path / "out" / "tiny" / STEPS
    assert not folder.exists()

    rerun = quantize_here(*OPTIONS, f"recipe={STEPS}")
    assert rerun.returncode == 0, rerun.stderr
    name = "model.safetensors"
    assert (folder / name).read_bytes() == (undisturbed / name).read_bytes()
    record, whole = manifest.read(folder), manifest.read(undisturbed)
    assert record.resumed_layers >= 2
    assert record.errors == whole.errors
    assert list((tmp_path / "out" / "tiny").glob(".*")) == []


@pytest.mark.slow
def test_where_activations_and_weights_are_kept_changes_no_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches partly on the host, weights as copies that are loaded beforehand: as on a GPU."""
    to_host, loader = LateCopies(), CloningLoader()

    def mixed(batches: Any, device: torch.device, gpu_bytes: float) -> Activations:
        activations = Activations(device, 100_000, to_host, LateCopies())
        for batch in batches:
            activations.append(batch)
        return activations

    def loaded(layers: Any, device: torch.device, excluded: Any) -> LayerWeights:
        modules = [[module for module in layer if module is not excluded] for layer in layers]
        return LayerWeights(modules, loader)

    def weights(folder: str) -> bytes:
        options = [*OPTIONS[:-1], "batch_size=1", f"output_dir={tmp_path / folder}"]
        checkpoint = quantize(quantize_config(*options, "recipe=w8a8_smooth_gptq"))
        assert checkpoint is not None
        return (checkpoint / "model.safetensors").read_bytes()

    plain = weights("plain")
    monkeypatch.setattr(Activations, "of", mixed)
    monkeypatch.setattr(LayerWeights, "of", loaded)
    assert weights("mixed") == plain
    assert to_host.started
    assert loader.copied


@pytest.mark.slow
def test_a_kept_layer_that_was_cut_short_is_done_again(tmp_path: Path, quantize_here: Run) -> None:
    killed(tmp_path, "layer", "recipe=w4a16_gptq", STEP="0")
    kept = sorted((tmp_path / "out" / "tiny" / ".w4a16_gptq.work").glob("step*"))
    assert len(kept) == 2
    kept[0].write_bytes(kept[0].read_bytes()[:-100])
    rerun = quantize_here(*OPTIONS, "recipe=w4a16_gptq")
    assert rerun.returncode == 0, rerun.stderr
    assert manifest.read(tmp_path / "out" / "tiny" / "w4a16_gptq").resumed_layers == 0


@pytest.mark.slow
def test_killed_while_saving_nothing_is_published(tmp_path: Path, quantize_here: Run) -> None:
    killed(tmp_path, "save", "recipe=fp8_dynamic")
    assert manifest.published(tmp_path / "out", "tiny") == []
    assert quantize_here(*OPTIONS, "recipe=fp8_dynamic").returncode == 0
    assert len(manifest.published(tmp_path / "out", "tiny")) == 1
    assert list((tmp_path / "out" / "tiny").glob(".*")) == []


def notes(**errors: float) -> LayerNotes:
    return LayerNotes(
        errors={name: {"gptq": error} for name, error in errors.items()}, fallbacks=[]
    )


def test_another_run_starts_over(tmp_path: Path) -> None:
    module = torch.nn.Linear(2, 2)
    first = WorkFolder(tmp_path / "work", {"text": "a"})
    first.write(0, 0, host_tensors({"m": module}), notes())
    assert WorkFolder(tmp_path / "work", {"text": "a"}).has(0, 0)
    assert not WorkFolder(tmp_path / "work", {"text": "b"}).has(0, 0)


def test_a_layer_is_kept_by_its_last_step(tmp_path: Path) -> None:
    work = WorkFolder(tmp_path / "work", {})
    module = torch.nn.Linear(2, 2)
    work.write(0, 3, host_tensors({"m": module}), notes())
    module.weight.data.fill_(7)
    work.write(1, 3, host_tensors({"m": module}), notes(m=0.5))
    module.weight.data.zero_()
    assert work.load(0, 3, {"m": module}) == notes(m=0.5)
    assert module.weight.eq(7).all()
    assert len(list(work.folder.glob("*.safetensors"))) == 1
    assert not work.has(2, 3)


def test_out_of_memory_names_the_layer_and_what_to_lower() -> None:
    expected = pytest.raises(QuantlineError, match="layer 4 of 36; lower batch_size")
    with expected as error, _named_out_of_memory("gptq", 3, 36):
        raise torch.OutOfMemoryError
    assert error.value.exit_code == 3


@pytest.mark.slow
def test_gptq_that_can_only_round_fails_the_run(tmp_path: Path, quantize_here: Run) -> None:
    """Eight tokens cannot fill a Hessian of 256 columns, and nothing dampens it."""
    result = quantize_here(
        "model=tiny",
        "recipe=w4a16_gptq",
        "recipe.gptq.dampening=0",
        "calibration.samples=1",
        "calibration.length=8",
    )
    assert result.returncode == 4, result.stderr
    assert "GPTQ could only round 14 of 14 modules" in result.stderr
    assert list(tmp_path.rglob("quantline.json")) == []


@pytest.mark.slow
def test_a_token_of_the_environment_is_written_nowhere(tmp_path: Path, quantize_here: Run) -> None:
    secret = "hf_verysecrettoken123"
    result = quantize_here(*OPTIONS, "recipe=fp8_dynamic", HF_TOKEN=secret)
    assert result.returncode == 0
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert written
    assert [path for path in written if secret.encode() in path.read_bytes()] == []
