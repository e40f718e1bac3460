"""A VPTQ checkpoint of a real, small model: made, verified, loaded, asked; damage is found."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from conf.errors import QuantlineError
from conf.schema.model import ModelConfig
from quantize.checkpoint import manifest, save
from quantize.checkpoint.reload import mean_divergence, probe_logits
from quantize.checkpoint.verify import verify
from quantize.models.float32 import convert_to_float32
from quantize.models.load import answer, load
from quantize.pipeline import quantize
from quantize.vptq.layer import VectorLayer
from quantize.vptq.linear import VectorLinear
from quantize.vptq.packing import pack
from serve.checks import is_verifiable
from tests.conftest import ROOT, quantize_config
from tests.serve.kernels.vptq import served

Q = "model.layers.0.self_attn.q_proj"
OTHER_Q = "model.layers.1.self_attn.q_proj.indices"
OPTIONS = [
    *("model=tiny", "recipe=vptq_2bit", "calibration.samples=8", "calibration.length=128"),
    *("recipe.vptq.rounds=3", "recipe.weights.codebooks.vector_length=8"),
    "recipe.weights.codebooks.residual_entries=64",
]
Tensors = dict[str, torch.Tensor]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def checkpoint(tiny: tuple[ModelConfig, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = quantize(quantize_config(*OPTIONS, f"output_dir={tmp_path_factory.mktemp('vptq')}"))
    assert folder is not None
    return folder


@pytest.fixture
def copy(checkpoint: Path, tmp_path: Path) -> Path:
    """Without its manifest, as another tool's checkpoint."""
    folder = Path(shutil.copytree(checkpoint, tmp_path / "copy"))
    (folder / manifest.FILE).unlink()
    return folder


def rewrite(folder: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_it_is_proven_loaded_and_asked(checkpoint: Path, tiny: tuple[ModelConfig, Path]) -> None:
    proof = verify(checkpoint, source=tiny[1])
    assert proof.faults == []
    layers = "vectors of 8 in codebooks of 256 and 64 entries (1.75 bits)"
    assert proof.formats == {layers: 14, "tied to the embedding": 1}
    record = manifest.read(checkpoint)
    assert record.proof.reload_divergence < 1e-3
    assert len(record.errors) == 14
    assert all(0 < error["vptq"] < 0.5 for error in record.errors.values())
    model, tokenizer = load(checkpoint, tiny[0])
    assert sum(isinstance(module, VectorLinear) for module in model.modules()) == 14
    original, _ = load(tiny[1], tiny[0])
    divergence = mean_divergence(probe_logits(original), probe_logits(model))
    assert 0 < divergence < 1
    assert answer(model, tokenizer, "Hello", tokens=4) is not None
    assert is_verifiable(json.loads((checkpoint / "config.json").read_text()))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda t: t.pop(f"{Q}.indices"), f"{Q}.indices is missing"),
        (lambda t: t.pop(f"{Q}.res_centroids.weight"), f"{Q}.res_centroids.weight is missing"),
        (lambda t: t[f"{Q}.centroids.weight"][0, 3:4].fill_(torch.nan), "NaN or infinite"),
        (lambda t: t[f"{Q}.centroids.weight"].zero_(), "holds one value only"),
        (lambda t: t[f"{Q}.weight_scale"][5:6].zero_(), "holds scales of zero"),
        (lambda t: t[f"{Q}.weight_scale"].mul_(1e6), "gives weights of"),
        (lambda t: t[f"{Q}.indices"].zero_(), "holds one number only"),
        (lambda t: t[f"{Q}.indices"][0, 2].zero_(), "one number throughout the vectors of row 16"),
        (
            lambda t: t.update({f"{Q}.indices": t[f"{Q}.indices"][:, :3].clone()}),
            "has the shape",
        ),
        (
            lambda t: t.update({f"{Q}.indices": t[OTHER_Q].clone()}),
            "holds the same values as",
        ),
        (lambda t: t.update({f"{Q}.perm": torch.zeros(1)}), "belongs to no part of the model"),
    ],
)
def test_damage_is_found_and_named(
    copy: Path, change: Callable[[Tensors], object], fault: str
) -> None:
    rewrite(copy, change)
    faults = verify(copy).faults
    assert any(fault in found for found in faults), faults


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"in_features": 64}, "in_features is 64"),
        ({"group_size": 7}, "group_size is 7"),
        ({"num_centroids": [-1, 100]}, "power of two"),
        ({"num_res_centroids": [-1, 32]}, "has the shape"),
        ({"enable_perm": True}, f"{Q}.perm is missing"),
    ],
)
def test_a_config_that_does_not_fit_is_found(
    copy: Path, fields: dict[str, object], fault: str
) -> None:
    content = json.loads((copy / "config.json").read_text())
    content["quantization_config"]["config_for_layers"][Q] |= fields
    (copy / "config.json").write_text(json.dumps(content))
    faults = verify(copy).faults
    assert any(fault in found for found in faults), faults


def test_a_variant_that_nothing_reads_is_refused(copy: Path) -> None:
    content = json.loads((copy / "config.json").read_text())
    content["quantization_config"]["config_for_layers"][Q]["is_indice_packed"] = False
    (copy / "config.json").write_text(json.dumps(content))
    with pytest.raises(QuantlineError, match="is_indice_packed"):
        verify(copy)


def reorder_columns(folder: Path, model: torch.nn.Module) -> None:
    """Published checkpoints store the columns that matter most first."""
    content = json.loads((folder / "config.json").read_text())
    linear = model.get_submodule(Q)
    assert isinstance(linear, VectorLinear)
    layer: VectorLayer = linear.layer()
    order = torch.randperm(layer.columns, generator=torch.Generator().manual_seed(0))
    main, residual = layer.numbers()
    assert residual is not None
    packed = pack(main[..., order], residual[..., order], layer.codebooks)
    content["quantization_config"]["config_for_layers"][Q]["enable_perm"] = True
    (folder / "config.json").write_text(json.dumps(content))
    rewrite(folder, lambda t: t.update({f"{Q}.indices": packed, f"{Q}.perm": order.short()}))


def test_columns_in_another_order_give_the_same_model(
    copy: Path, tiny: tuple[ModelConfig, Path]
) -> None:
    model, _ = load(copy, tiny[0])
    before = probe_logits(model)
    reorder_columns(copy, model)
    assert verify(copy).faults == []
    assert torch.equal(probe_logits(load(copy, tiny[0])[0]), before)
    rewrite(copy, lambda t: t[f"{Q}.perm"].zero_())
    assert any("perm does not name each column once" in fault for fault in verify(copy).faults)


def test_vllm_computes_what_plain_torch_computes(
    copy: Path, tiny: tuple[ModelConfig, Path]
) -> None:
    """Merged layers, one of whose parts has its columns in another order; prompts and single tokens
    by vLLM's own loader and model. Both compute in 32 bits, also where the CPU has bf16 units."""
    model, _ = load(copy, tiny[0])
    reorder_columns(copy, model)
    convert_to_float32(model)
    command = [sys.executable, "-m", served.__name__, str(copy)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    lines = [line for line in result.stdout.splitlines() if line.startswith(served.MARK)]
    assert lines, result.stderr[-2000:]
    tokens, values = json.loads(lines[0].removeprefix(served.MARK))
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0]
    right = logits[:-1].log_softmax(-1).gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
    assert torch.tensor(values) == pytest.approx(right, abs=1e-3)
    answered = len(served.TOKENS) - 1
    assert logits[answered:-1].argmax(-1).tolist() == tokens[answered + 1 :]


def test_a_run_that_failed_goes_on_and_gives_the_same_bytes(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space left on device")

    config = quantize_config(*OPTIONS, f"output_dir={tmp_path}")
    with monkeypatch.context() as patched:
        patched.setattr(save, "save", fail)
        with pytest.raises(QuantlineError):
            quantize(config)
    folder = quantize(config)
    assert folder is not None
    assert manifest.read(folder).resumed_layers >= 2
    name = "model.safetensors"
    assert (folder / name).read_bytes() == (checkpoint / name).read_bytes()
