"""A checkpoint derives from its source's files, or is not published."""

import errno
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from conf.errors import QuantlineError, bad_input, environment_failure
from conf.schema.model import ModelConfig
from conf.schema.number_format import NumberFormat
from quantize.calibrate.compress import _named_failure
from quantize.checkpoint.check_saved import gated
from quantize.checkpoint.derivation import Derivation, compare_answers, compare_tensors, similarity
from quantize.models.load import empty_model
from quantize.steps.base.formats import quantization_args
from tests.quantize.models.mutations import micro

DOWN = "model.layers.1.mlp.down_proj"
NORM = "model.layers.0.input_layernorm"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return micro(tmp_path_factory.mktemp("models") / "source", "llama")


def rounded(source: Path, folder: Path) -> Path:
    """The source with INT8 weights by channel, written without llm-compressor."""
    shutil.copytree(source, folder)
    stored = load_file(source / "model.safetensors")
    for name in [name for name in stored if "_proj" in name]:
        weight = stored[name].float()
        scale = weight.abs().amax(1, keepdim=True) / 127
        stored[name] = (weight / scale).round().to(torch.int8)
        stored[f"{name}_scale"] = scale.bfloat16()
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    numbers = quantization_args(NumberFormat(type="int", bits=8, strategy="channel"))
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": json.loads(numbers.model_dump_json())}
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def checkpoint(source: Path, tmp_path: Path) -> Path:
    return rounded(source, tmp_path / "checkpoint")


def compared(
    source: Path, checkpoint: Path, *rescaled: str, pruned: tuple[str, ...] = ()
) -> Derivation:
    return compare_tensors(
        source, checkpoint, empty_model(source, False), set(rescaled), set(pruned)
    )


def change(checkpoint: Path, name: str, tensor: torch.Tensor) -> None:
    stored = load_file(checkpoint / "model.safetensors")
    stored[name] = tensor.to(stored[name].dtype)
    save_file(stored, checkpoint / "model.safetensors", metadata={"format": "pt"})


def test_an_honest_checkpoint_derives_from_its_source(source: Path, checkpoint: Path) -> None:
    found = compared(source, checkpoint)
    assert found.faults == []
    assert (found.unchanged, found.weights, found.not_compared) == (6, 14, 0)
    assert found.similarity > 0.999


def test_random_numbers_in_a_weight_are_named(source: Path, checkpoint: Path) -> None:
    stored = load_file(checkpoint / "model.safetensors")[f"{DOWN}.weight"]
    noise = torch.randint(-127, 127, stored.shape, generator=torch.Generator().manual_seed(0))
    change(checkpoint, f"{DOWN}.weight", noise)
    for rescaled in ((), (DOWN,)):
        found = compared(source, checkpoint, *rescaled)
        assert [fault.split(" does not")[0] for fault in found.faults] == [f"{DOWN}.weight"]


@pytest.mark.parametrize(
    "name", [f"{NORM}.weight", "model.norm.weight", "model.embed_tokens.weight"]
)
def test_a_tensor_that_no_step_may_change_is_compared_bit_for_bit(
    name: str, source: Path, checkpoint: Path
) -> None:
    tensor = load_file(checkpoint / "model.safetensors")[name]
    tensor.view(-1)[0] += 0.01
    change(checkpoint, name, tensor)
    assert compared(source, checkpoint).faults == [
        f"{name} is not the source's, and no step may change it"
    ]


def test_what_smoothing_scales_is_accepted_where_it_may(source: Path, checkpoint: Path) -> None:
    """Columns times s, the norm before them over s."""
    stored = load_file(checkpoint / "model.safetensors")
    scale = torch.linspace(0.5, 4, 32)
    smooth = [f"model.layers.0.self_attn.{part}_proj" for part in "qkv"]
    for name in smooth:
        weight = stored[f"{name}.weight"].float() * stored[f"{name}.weight_scale"].float() * scale
        wide = weight.abs().amax(1, keepdim=True) / 127
        change(checkpoint, f"{name}.weight", (weight / wide).round())
        change(checkpoint, f"{name}.weight_scale", wide)
    change(checkpoint, f"{NORM}.weight", stored[f"{NORM}.weight"].float() / scale)
    found = compared(source, checkpoint, NORM, *smooth)
    assert found.faults == []
    assert found.rescaled == 1
    assert found.similarity > 0.999
    assert (
        f"{NORM}.weight is not the source's, and no step may change it"
        in compared(source, checkpoint).faults
    )


def test_a_weight_of_another_layer_is_not_taken_for_its_own(source: Path, checkpoint: Path) -> None:
    stored = load_file(checkpoint / "model.safetensors")
    other = DOWN.replace("layers.1", "layers.0")
    for part in ("weight", "weight_scale"):
        change(checkpoint, f"{DOWN}.{part}", stored[f"{other}.{part}"])
    assert compared(source, checkpoint, DOWN).faults


def test_pruned_weights_resemble_their_source() -> None:
    weight = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    groups = weight.view(-1, 4)
    kept = torch.zeros_like(groups).scatter(1, groups.abs().topk(2).indices, 1.0)
    assert similarity((groups * kept).view(64, 64), weight, rescaled=False) > 0.9
    other = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    assert abs(similarity(other, weight, rescaled=False)) < 0.1
    assert abs(similarity(other, weight, rescaled=True)) < 0.4
    assert similarity(torch.zeros(2, 2), torch.zeros(2, 2), rescaled=True) == 1


def test_answers_of_another_model_are_seen() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, other = (torch.randn(1, 64, 100, generator=generator) for _ in range(2))
    close, far = Derivation(), Derivation()
    compare_answers(close, logits, logits + 0.1 * other)
    compare_answers(far, logits, other)
    assert close.faults == []
    assert close.divergence < 0.1 * close.unrelated
    assert "unrelated to the source" in far.faults[0]
    pruned = Derivation()
    compare_answers(pruned, logits, other, pruned=True)
    assert pruned.faults == []
    constant = Derivation()
    compare_answers(constant, torch.zeros(1, 64, 100), torch.zeros(1, 64, 100))
    assert constant.faults == []
    broken = Derivation()
    compare_answers(broken, logits, torch.full_like(logits, float("nan")))
    assert broken.faults


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (bad_input("config.json: is damaged"), 4),  # a file that we wrote
        (environment_failure("disk"), 3),
        (OSError(errno.ENOSPC, "full"), 3),
        (RuntimeError("shapes"), 4),
        (KeyError("weight_scale"), 4),
    ],
)
def test_a_checkpoint_that_cannot_be_used_fails_the_gate(error: Exception, code: int) -> None:
    with pytest.raises(QuantlineError, match=r"recipe=r: not published|disk") as said, gated("r"):
        raise error
    assert said.value.exit_code == code


def test_what_llm_compressor_cannot_do_is_no_internal_error() -> None:
    expected = pytest.raises(QuantlineError, match="recipe=r: llm-compressor cannot run it")
    with expected as said, _named_failure("r"):
        raise RuntimeError("cannot trace this model")
    assert said.value.exit_code == 2
    with pytest.raises(OSError, match="full"), _named_failure("r"):
        raise OSError(errno.ENOSPC, "full")


@pytest.mark.slow
def test_the_manifest_holds_the_comparison(
    tiny_checkpoint: Path, tiny: tuple[ModelConfig, Path]
) -> None:
    found = json.loads((tiny_checkpoint / "quantline.json").read_text())["proof"]["source"]
    assert found["faults"] == []
    assert (found["unchanged"], found["rescaled"], found["weights"]) == (6, 4, 14)
    assert found["similarity"] > 0.99
    assert found["divergence"] < 0.01 * found["unrelated"]
