"""A whole run on a real, small model: what it publishes, and what it leaves alone."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from conf.errors import QuantlineError
from conf.schema.model import ModelConfig
from quantize.checkpoint import manifest
from quantize.checkpoint.publish import published_atomically
from quantize.pipeline import quantize
from tests.conftest import Run, quantize_config

LINEAR = [f"self_attn.{part}_proj" for part in "qkvo"] + [
    f"mlp.{part}_proj" for part in ("gate", "up", "down")
]


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    with safe_open(folder / "model.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def digest(folder: Path) -> str:
    parts = [path.read_bytes() for path in sorted(folder.iterdir())]
    return hashlib.sha256(b"".join(parts)).hexdigest()


@pytest.mark.slow
def test_a_checkpoint_holds_int8_weights_and_the_rest_as_it_was(tiny_checkpoint: Path) -> None:
    found = tensors(tiny_checkpoint)
    quantized = {name for name, tensor in found.items() if tensor.dtype == torch.int8}
    assert len(quantized) == 14
    assert all(name.endswith("_proj.weight") for name in quantized)
    for name in quantized:
        scale = found[name.replace(".weight", ".weight_scale")]
        assert scale.shape == (found[name].shape[0], 1)
        assert torch.isfinite(scale).all()
    rest = {found[name].dtype for name in found if "_proj" not in name}
    assert rest == {torch.bfloat16}


@pytest.mark.slow
def test_the_manifest_says_how_it_was_made(tiny_checkpoint: Path) -> None:
    record = manifest.read(tiny_checkpoint)
    assert (record.model, record.recipe) == ("tiny", "w8a8_smooth_gptq")
    assert record.proof.formats["int8, a scale for each channel"] == 14
    assert record.proof.faults == []
    assert set(record.errors) == {f"model.layers.{i}.{name}" for i in (0, 1) for name in LINEAR}
    assert record.text is not None
    assert record.text.counts.tokens == 8 * 128
    assert record.recipe_config.model_dump()["smoothquant"] == {"smoothing_strength": 0.8}
    assert record.versions["compressed-tensors"] == "0.19.0"
    assert manifest.published(tiny_checkpoint.parent.parent, "tiny") == [tiny_checkpoint]


@pytest.mark.slow
def test_it_speaks_almost_like_the_original(
    tiny_checkpoint: Path, tiny: tuple[ModelConfig, Path]
) -> None:
    """8 bit costs little: the next-token distributions stay close, in transformers."""
    inputs = torch.arange(16, 80).view(1, -1)
    with torch.no_grad():
        original, quantized = (
            AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(inputs).logits
            for folder in (tiny[1], tiny_checkpoint)
        )
    divergence = torch.nn.functional.kl_div(
        quantized.log_softmax(-1), original.log_softmax(-1), log_target=True, reduction="none"
    ).sum(-1)
    assert 0 < divergence.mean() < 0.01


@pytest.mark.slow
def test_an_existing_checkpoint_is_replaced_only_when_asked(
    tiny_checkpoint: Path, quantize_here: Run
) -> None:
    before = digest(tiny_checkpoint)
    root = tiny_checkpoint.parent.parent
    result = quantize_here("model=tiny", f"output_dir={root}")
    assert result.returncode == 2
    assert "replace=true" in result.stderr
    assert digest(tiny_checkpoint) == before


def test_a_failing_save_leaves_the_old_checkpoint_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    claimed = {"model.safetensors": "", "stale-shard.safetensors": ""}
    for name in claimed:
        (folder / name).write_text("old")
    ours = {"schema": 3, "recipe": "r", "files": claimed}
    (folder / manifest.FILE).write_text(json.dumps(ours))
    with (
        pytest.raises(QuantlineError, match="No space left") as error,
        published_atomically(folder, replace=True),
    ):
        raise OSError(28, "No space left on device")
    assert error.value.exit_code == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint"]
    assert (folder / "model.safetensors").read_text() == "old"

    with published_atomically(folder, replace=True) as unfinished:
        (unfinished / "model.safetensors").write_text("new")
    assert [path.name for path in folder.iterdir()] == ["model.safetensors"]
    assert (folder / "model.safetensors").read_text() == "new"


@pytest.mark.slow
def test_a_recipe_that_matches_nothing_publishes_nothing(
    quantize_here: Run, tmp_path: Path
) -> None:
    result = quantize_here("model=tiny", "recipe.steps=[rounding]", "recipe.ignore=['re:.*']")
    assert result.returncode == 2, result.stderr
    assert "no linear layer of Qwen3ForCausalLM is left" in result.stderr
    assert list(tmp_path.rglob("quantline.json")) == []


def test_a_manifest_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(QuantlineError, match=r"no checkpoint of ours"):
        manifest.read(tmp_path)
    (tmp_path / manifest.FILE).write_text("{]")
    with pytest.raises(QuantlineError, match=r"quantline.json:1: no JSON"):
        manifest.read(tmp_path)
    (tmp_path / manifest.FILE).write_text(json.dumps({"schema": 1}))
    with pytest.raises(QuantlineError, match="no manifest of schema"):
        manifest.read(tmp_path)


def test_names_stay_under_the_output_root() -> None:
    for name in ("../up", "/abs", ".."):
        with pytest.raises(QuantlineError, match="a plain folder name"):
            quantize_config(f"model.name={name!r}")
        with pytest.raises(QuantlineError, match="a plain folder name"):
            quantize_config(f"recipe.name={name!r}")


def test_a_set_of_the_hub_is_opened_before_the_model_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder stands in for the hub."""
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": "a document"}))
    fetched = []

    def fetch(model: ModelConfig) -> Path:
        fetched.append(model.name)
        raise QuantlineError("fetched", exit_code=3)

    monkeypatch.setattr("quantize.pipeline.fetch", fetch)
    hub = [f"calibration.id={tmp_path}", "calibration.subset=null", f"output_dir={tmp_path}"]
    for split, reason in (
        ("validation", r"calibration\.id=.*: cannot be read"),
        ("train", "fetch"),
    ):
        config = quantize_config(
            "model=tiny", "calibration=wikitext", f"calibration.split={split}", *hub
        )
        with pytest.raises(QuantlineError, match=reason):
            quantize(config)
    assert fetched == ["tiny"]
