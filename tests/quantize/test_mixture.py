"""A mixture of experts, from random weights to a verified checkpoint."""

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file

from conf.errors import QuantlineError
from conf.models import read_config
from evaluate.measure.roofline import cost
from evaluate.measure.targets import targets
from quantize.checkpoint import manifest
from quantize.checkpoint.verify import verify
from quantize.models.fetch import fetch
from quantize.pipeline import quantize
from serve.tensors import tensors
from tests.conftest import evaluate_config, quantize_config

SMALL = ["model=tiny-moe", "model.weights=random", "model.architecture.num_hidden_layers=1"]
SMALL += ["model.architecture.num_experts=4", "model.architecture.vocab_size=512"]
MIXTRAL = ["model.architecture.model_type=mixtral", "model.architecture.moe_intermediate_size=0"]
TEXT = ["calibration.samples=4", "calibration.length=64"]


class Family(NamedTuple):
    """A mixture, with the names of its tensors as the issuers of these models chose them."""

    options: list[str]
    router: str
    experts: str
    gate: str
    up: str
    down: str
    width: int
    """Inside an expert."""

    @property
    def expert(self) -> str:
        return f"{self.experts}.2.{self.up}"


MLP, SPARSE = "model.layers.0.mlp", "model.layers.0.block_sparse_moe"
FAMILIES = {
    "qwen3_moe": Family(
        SMALL, f"{MLP}.gate", f"{MLP}.experts", "gate_proj", "up_proj", "down_proj", 256
    ),
    "mixtral": Family(
        [*SMALL, *MIXTRAL], f"{SPARSE}.gate", f"{SPARSE}.experts", "w1", "w3", "w2", 512
    ),
}


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


@pytest.fixture(scope="module")
def checkpoint(family: Family, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("mixture")
    config = quantize_config(*family.options, *TEXT, "recipe=w4a16_gptq", f"output_dir={root}")
    made = quantize(config)
    assert made is not None
    return made


def test_every_expert_is_stored_in_the_layout_that_vllm_loads(
    checkpoint: Path, family: Family
) -> None:
    stored = tensors(checkpoint)
    inside = family.width
    for expert in range(4):
        for name, rows, columns in (
            (family.gate, inside, 256),
            (family.up, inside, 256),
            (family.down, 256, inside),
        ):
            layer = f"{family.experts}.{expert}.{name}"
            assert stored[f"{layer}.weight_packed"].shape == (rows, columns // 8)
            assert stored[f"{layer}.weight_scale"].shape == (rows, columns // 128)
    assert stored[f"{family.router}.weight"].dtype == "BF16"
    config = json.loads((checkpoint / "config.json").read_text())
    assert family.router in config["quantization_config"]["ignore"]


def test_the_manifest_has_the_tokens_of_each_expert(checkpoint: Path, family: Family) -> None:
    record = manifest.read(checkpoint)
    assert record.text is not None
    (counts,) = record.expert_tokens.values()
    assert list(record.expert_tokens) == [family.experts]
    assert len(counts) == 4
    assert sum(counts) == record.text.counts.tokens * 2  # two experts a token


def test_the_roofline_reads_the_experts_that_a_batch_visits(
    checkpoint: Path, family: Family
) -> None:
    work = cost(tensors(checkpoint), read_config(checkpoint), dtype_bytes=2)
    assert work is not None
    assert work.experts is not None
    assert work.experts.weights == 4 * 3 * 256 * family.width
    body = work.layer_bytes(0)
    assert work.layer_bytes(1) - body == work.experts.bytes / 2  # two experts of four
    assert work.layer_bytes(2) - body == work.experts.bytes * 3 / 4


def test_awq_scales_the_router_with_the_experts(family: Family, tmp_path: Path) -> None:
    """Both read the norm that is scaled. That the result computes the same is proven inside."""
    options = [*family.options, *TEXT, "recipe=w4a16_awq", "recipe.awq.grid=20"]
    made = quantize(quantize_config(*options, f"output_dir={tmp_path}"))
    assert made is not None
    stored = tensors(made)
    assert stored[f"{family.expert}.weight_zero_point"].shape == (family.width // 8, 2)
    source = fetch(quantize_config(*options).model)
    old, new = (load_file(folder / "model.safetensors") for folder in (source, made))
    router, norm = f"{family.router}.weight", "model.layers.0.post_attention_layernorm.weight"
    assert not torch.equal(old[router], new[router])
    assert torch.allclose(old[router] * old[norm], new[router] * new[norm], rtol=0.02)


def test_too_few_tokens_publish_nothing_and_a_lower_limit_goes_on(tmp_path: Path) -> None:
    options = [*SMALL, *TEXT, "recipe=w4a16_gptq", f"output_dir={tmp_path}"]
    with pytest.raises(QuantlineError, match="4 of 4 experts were chosen for fewer than 1000000"):
        quantize(quantize_config(*options, "min_expert_tokens=1000000"))
    assert not manifest.published(tmp_path, "tiny-moe")
    made = quantize(quantize_config(*options, "min_expert_tokens=0"))
    assert made is not None
    record = manifest.read(made)
    assert record.resumed_layers > 0
    assert sum(record.expert_tokens["model.layers.0.mlp.experts"]) > 0


@pytest.mark.parametrize("part", ["packed", "router", "scale"])
def test_a_damaged_expert_is_found(
    checkpoint: Path, family: Family, tmp_path: Path, part: str
) -> None:
    names = {
        "packed": f"{family.expert}.weight_packed",
        "router": f"{family.router}.weight",
        "scale": f"{family.expert}.weight_scale",
    }
    name, copy = names[part], tmp_path / "copy"
    shutil.copytree(checkpoint, copy)
    content = load_file(copy / "model.safetensors")
    if part == "scale":
        content[name] = content[name][:, :1].contiguous()
        fault = f"{name} has the shape ({family.width}, 1)"
    else:
        del content[name]
        fault = f"{name} is missing"
    save_file(content, copy / "model.safetensors", {"format": "pt"})
    assert any(fault in each for each in verify(copy).faults)


def test_an_expert_written_over_another_is_found(
    checkpoint: Path, family: Family, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint, copy)
    content = load_file(copy / "model.safetensors")
    other = family.expert.replace(".2.", ".3.")
    for part in ("weight_packed", "weight_scale"):
        content[f"{other}.{part}"] = content[f"{family.expert}.{part}"].clone()
    save_file(content, copy / "model.safetensors", {"format": "pt"})
    assert any("the same values as" in each for each in verify(copy).faults)


@pytest.mark.usefixtures("programs_here")
def test_a_described_mixture_has_the_real_ones_tensors(
    checkpoint: Path, family: Family, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("QUANTLINE_CACHE", str(tmp_path))
    config = evaluate_config(*family.options, "weights=random", "recipes=[w4a16_gptq]")
    described = targets(config)[1].folder
    assert described is not None
    real = {name: tensor.shape for name, tensor in tensors(checkpoint).items()}
    assert {name: tensor.shape for name, tensor in tensors(described).items()} == real
    ignored = [
        set(json.loads((folder / "config.json").read_text())["quantization_config"]["ignore"])
        for folder in (described, checkpoint)
    ]
    assert ignored[0] == ignored[1]
    assert not any(tensor.dtype == "F32" for tensor in tensors(described).values())
