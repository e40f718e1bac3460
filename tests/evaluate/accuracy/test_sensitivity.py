"""Which layers pay: right on a model in which one was made fragile on purpose."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from conf.errors import QuantlineError
from conf.schema.model import ModelConfig
from evaluate.accuracy.sensitivity import summary
from evaluate.results.results_file import read
from evaluate.results.row_values import Block
from evaluate.results.rows import SensitivityRow
from quantize.sensitivity import _with_fitting_groups, blocks_of
from tests.conftest import Run, quantize_config


def block(name: str, divergence: float, size: float = 10.0) -> Block:
    return Block(block=name, modules=[f"{name}.x"], divergence=divergence, bytes=size)


def test_blocks_that_stand_out_and_cost_little_are_named() -> None:
    even = [block(f"layer{n}", 0.01) for n in range(20)]
    found = summary([*even, block("small", 0.5), block("large", 0.9, size=100)])
    assert found.worth_ignoring == ["small"]
    assert found.ignore == ["small.x"]
    assert found.blocks[0].block == "large"
    assert found.ignored_divergence == 0.5
    assert summary(even).ignore == []


def test_a_part_of_a_layer_is_one_block() -> None:
    names = [
        "model.layers.0.self_attn.q_proj",
        "model.layers.0.self_attn.k_proj",
        "model.layers.0.mlp.up_proj",
        "model.layers.10.mlp.up_proj",
        "lm_head",
    ]
    assert blocks_of(names) == {
        "model.layers.0.self_attn": names[:2],
        "model.layers.0.mlp": [names[2]],
        "model.layers.10.mlp": [names[3]],
        "lm_head": ["lm_head"],
    }


def test_a_format_without_a_group_that_fits_is_refused_by_its_own_name() -> None:
    """W4AFP8 runs in groups of 128 only; 576 columns have none. The user asked for no group."""
    model = torch.nn.Sequential(torch.nn.Linear(576, 64, bias=False))
    recipe = quantize_config("recipe=w4afp8_gptq").recipe
    message = "accuracy=sensitivity tries groups of 128 for recipe=w4afp8_gptq: none divides 576"
    with pytest.raises(QuantlineError, match=message):
        _with_fitting_groups(model, recipe)


@pytest.mark.slow
def test_a_fragile_layer_is_found(
    tiny: tuple[ModelConfig, Path], command_here: Run, tmp_path: Path
) -> None:
    """Columns that are multiplied with zero may hold anything, and what they hold spoils the scale
    of their whole group: the model is the same, until it is rounded."""
    fragile = Path(shutil.copytree(tiny[1], tmp_path / "fragile"))
    weights = load_file(fragile / "model.safetensors")
    for column in (5, 200, 300, 450):  # one in each group of 128
        weights["model.layers.1.mlp.up_proj.weight"][column] = 0
        weights["model.layers.1.mlp.down_proj.weight"][:, column] = 50
    save_file(weights, fragile / "model.safetensors", {"format": "pt"})
    command = [
        "evaluate", f"model.path={fragile}", "accuracy=sensitivity", "recipes=[w4a16_gptq]",
        "accuracy.tokens=512", "accuracy.window=128",
    ]  # fmt: skip
    result = command_here(*command)
    assert result.returncode == 0, result.stderr
    (row,), _ = read(tmp_path / "results.jsonl")
    assert isinstance(row, SensitivityRow)
    assert row.values.blocks[0].block == "model.layers.1.mlp"
    assert len(row.values.blocks) == 4
    assert "model.layers.1.mlp" in result.stdout

    again = command_here(*command)
    assert again.returncode == 0
    assert len(read(tmp_path / "results.jsonl")[0]) == 1


def test_recipes_have_to_be_named(command_here: Run) -> None:
    result = command_here("evaluate", "model=tiny", "accuracy=sensitivity")
    assert result.returncode == 2
    assert "name the recipes" in result.stderr
    typo = command_here("evaluate", "model=tiny", "accuracy=sensitivity", "recipes=[w4a16_gtpq]")
    assert typo.returncode == 2
    assert "Did you mean w4a16_gptq" in typo.stderr
