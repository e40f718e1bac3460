"""On an NVIDIA GPU: recipes run there, are proven there, and answer in vLLM there."""

import math
import os
from pathlib import Path

import pytest

from quantize.calibrate import sequential
from quantize.calibrate.memory.weights import LayerWeights
from quantize.checkpoint import manifest
from quantize.pipeline import quantize
from tests.conftest import ROOT, Run, quantize_config

SMALL = ["model=tiny", "calibration.samples=8", "calibration.length=128"]
RECIPES = ("w8a16_awq", "w8a8_smooth_gptq", "w4a16_gptq", "fp8_dynamic", "w8a8_sparse_smooth_gptq")


@pytest.mark.gpu
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_runs_on_the_gpu(recipe: str, tmp_path: Path) -> None:
    folder = quantize(quantize_config(*SMALL, f"recipe={recipe}", f"output_dir={tmp_path}"))
    assert folder is not None
    record = manifest.read(folder)
    assert record.peak_memory_gib["gpu"] > 0
    assert record.proof.reload_divergence < 0.02


@pytest.mark.gpu
@pytest.mark.parametrize("recipe", ["w8a8_sparse_smooth_gptq", "w4a16_awq"])
def test_where_activations_and_weights_are_kept_changes_no_byte(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def weights(name: str, gpu_bytes: float) -> bytes:
        monkeypatch.setattr(sequential, "gpu_budget", lambda *_: gpu_bytes)
        options = [*SMALL, "batch_size=1", f"recipe={recipe}", f"output_dir={tmp_path / name}"]
        folder = quantize(quantize_config(*options))
        assert folder is not None
        return (folder / "model.safetensors").read_bytes()

    all_on_gpu = weights("gpu", math.inf)
    assert weights("mixed", 400_000) == all_on_gpu
    assert weights("host", 0) == all_on_gpu
    monkeypatch.setattr(LayerWeights, "of", lambda *_: LayerWeights([], None))
    assert weights("loaded when used", math.inf) == all_on_gpu


@pytest.mark.gpu
def test_vllm_answers_with_a_weight_only_checkpoint(run_command: Run, tmp_path: Path) -> None:
    folder = quantize(quantize_config(*SMALL, "recipe=w4a16_gptq", f"output_dir={tmp_path}"))
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    result = run_command("serve", f"checkpoint={folder}", "prompt=The", PYTHONPATH=path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()
