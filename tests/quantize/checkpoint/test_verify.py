"""The proof: what is damaged is found and named."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from conf.errors import QuantlineError
from conf.schema.model import ModelConfig
from quantize.checkpoint.tensors import breaks_2_of_4, unpack_integers
from quantize.checkpoint.verify import verify
from quantize.verify import prove
from tests.conftest import Run
from tests.quantize.models.made import edit

Q = "model.layers.0.self_attn.q_proj"
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def copy(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_checkpoint, tmp_path / "copy"))


def rewrite(folder: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda t: t.pop(f"{Q}.weight_scale"), f"{Q}.weight_scale is missing"),
        (lambda t: t.pop(f"{Q}.weight"), f"{Q}.weight is missing"),
        (lambda t: t.pop("model.norm.weight"), "model.norm.weight is missing"),
        (lambda t: t[f"{Q}.weight_scale"].fill_(float("nan")), "holds NaN or infinite values"),
        (lambda t: t[f"{Q}.weight_scale"].zero_(), "holds scales of zero"),
        (
            lambda t: t.update({f"{Q}.weight": t[f"{Q}.weight"].bfloat16()}),
            "is stored as BF16, I8 is expected",
        ),
        (
            lambda t: t.update({f"{Q}.weight_scale": t[f"{Q}.weight_scale"][:8].clone()}),
            r"has the shape \(8, 1\), \(256, 1\) is expected",
        ),
        (lambda t: t.update({"stray": torch.ones(1)}), "stray belongs to no part of the model"),
    ],
)
def test_damage_is_found_and_named(
    copy: Path, change: Callable[[Tensors], object], fault: str
) -> None:
    assert verify(copy).faults == []
    rewrite(copy, change)
    assert len(verify(copy).faults) >= 1
    with pytest.raises(AssertionError, match=fault):
        assert verify(copy).faults == [], verify(copy).faults


@pytest.mark.slow
def test_a_recipe_that_asked_for_something_else_is_a_fault(copy: Path) -> None:
    def ask(record: dict[str, Any]) -> None:
        record["recipe_config"]["weights"]["bits"] = 4
        record["recipe_config"]["ignore"].append("re:.*down_proj")

    edit(copy / "quantline.json", ask, seal=True)
    faults = verify(copy).faults
    assert f"{Q}: weights have bits 8, the recipe asks for 4" in faults
    assert "model.layers.0.mlp.down_proj is quantized, but the recipe does not ask for it" in faults


@pytest.mark.slow
def test_the_embedding_has_to_be_the_originals(copy: Path, tiny: tuple[ModelConfig, Path]) -> None:
    assert verify(copy, source=tiny[1]).faults == []
    rewrite(copy, lambda tensors: tensors["model.embed_tokens.weight"][5].add_(0.5))
    assert verify(copy, source=tiny[1]).faults[0] == (
        "model.embed_tokens.weight is not the original's"
    )


@pytest.mark.slow
def test_a_flipped_bit_and_a_lost_file_are_named_and_words_may_be_changed(copy: Path) -> None:
    weights = copy / "model.safetensors"
    whole = bytearray(weights.read_bytes())
    whole[-1000] ^= 1
    weights.write_bytes(whole)
    (copy / "tokenizer.json").unlink()
    (copy / "README.md").write_text("ours")
    (copy / "generation_config.json").unlink()
    edited = json.loads((copy / "config.json").read_text()) | {"max_position_embeddings": 4096}
    (copy / "config.json").write_text(json.dumps(edited))
    assert verify(copy).faults == [
        "tokenizer.json is missing",
        "model.safetensors is not what was published, its hash differs",
    ]


@pytest.mark.slow
def test_a_mask_that_is_claimed_has_to_be_there(copy: Path) -> None:
    faults = verify(copy, sparse=True).faults
    assert len(faults) == 14
    assert "groups of four have fewer than two zeros" in faults[0]


@pytest.mark.slow
def test_the_command_proves_or_exits_4(copy: Path, command_here: Run) -> None:
    fine = command_here("quantize.verify", str(copy))
    assert fine.returncode == 0
    assert "    14 layers  int8, a scale for each channel" in fine.stdout
    (copy / "quantline.json").unlink()  # not ours: proven all the same
    prove(copy)
    rewrite(copy, lambda tensors: tensors.pop(f"{Q}.weight_scale"))
    broken = command_here("quantize.verify", str(copy))
    assert broken.returncode == 4
    assert f"{Q}.weight_scale is missing" in broken.stderr


@pytest.mark.slow
def test_a_truncated_file_and_a_stale_index_are_named(copy: Path) -> None:
    whole = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(QuantlineError, match=r"model\.safetensors: is cut short") as error:
        verify(copy)
    assert error.value.exit_code == 2
    (copy / "model.safetensors").write_bytes(whole)
    index = {"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(QuantlineError, match="which is not there"):
        verify(copy)


def test_no_checkpoint_is_bad_input(tmp_path: Path, command_here: Run) -> None:
    (tmp_path / "tiny" / "fp8").mkdir(parents=True)
    (tmp_path / "tiny" / "fp8" / "config.json").write_text("{}")
    above = command_here("quantize.verify", str(tmp_path))
    assert above.returncode == 2
    assert f"there is no config.json; below it are {tmp_path}/tiny/fp8" in above.stderr
    assert command_here("quantize.verify").returncode == 2


def test_integers_are_unpacked_as_they_were_packed() -> None:
    values = torch.tensor([[-8, -1, 0, 7, 3, -3, 1, -7]])
    word = sum((int(value) + 8) << (4 * place) for place, value in enumerate(values[0]))
    packed = torch.tensor([[word - (1 << 32) if word >= 1 << 31 else word]], dtype=torch.int32)
    assert torch.equal(unpack_integers(packed, 4, 8), values)


def test_two_of_four() -> None:
    assert breaks_2_of_4(torch.tensor([[1, 0, 0, 2, 0, 0, 0, 3]])) == 0
    assert breaks_2_of_4(torch.tensor([[1, 0, 5, 2, 0, 0, 0, 3]])) == 1
