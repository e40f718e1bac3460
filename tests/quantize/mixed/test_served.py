"""A checkpoint whose layers have several formats is served as it was made."""

from pathlib import Path

import pytest

from conf.schema.model import ModelConfig
from quantize.checkpoint import manifest
from tests.conftest import Run
from tests.serve.kernels.logits import faults_in_torch, served

RECIPE = "defaults: [w8a8_smooth_ptq]\nsteps: [rounding]\nauto: {formats: [original]}\n"


@pytest.mark.slow
def test_vllm_computes_what_torch_does(
    tiny: tuple[ModelConfig, Path],
    quantize_here: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """INT8 beside 16 bit: the formats that vLLM runs on every CPU."""
    (tmp_path / "team").mkdir()
    (tmp_path / "team" / "mixed8.yaml").write_text(RECIPE)
    monkeypatch.setenv("QUANTLINE_RECIPES", str(tmp_path / "team"))
    text = ["calibration.samples=8", "calibration.length=128"]
    result = quantize_here("model=tiny", "recipe=mixed8", "bits=12", *text)
    assert result.returncode == 0, result.stderr
    (folder,) = {path.parent for path in tmp_path.rglob("quantline.json")}
    formats = manifest.read(folder).proof.formats
    assert {"bfloat16", "int8, a scale for each channel"} <= set(formats)
    scores = served(folder, "vllm", tmp_path / "scores.json").scores
    assert faults_in_torch(folder, tiny[0], scores) == []
