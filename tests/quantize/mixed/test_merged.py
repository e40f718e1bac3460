"""Which modules share a format, and how large they are in it."""

from dataclasses import replace

import pytest
import torch

from conf.schema.mixed import LayerFormat, layer_formats
from conf.schema.number_format import NumberFormat
from conf.schema.recipe import RecipeConfig
from quantize.mixed.merged import merged_layers
from tests.conftest import quantize_config

ALL = "recipe.auto.formats=[w4a16_g32,w8a16,original]"
INT4 = NumberFormat(type="int", bits=4, strategy="group", group_size=128)


def recipe(*options: str) -> RecipeConfig:
    return quantize_config("recipe=auto", *options).recipe


def linears(*names: str) -> dict[str, torch.nn.Linear]:
    return {name: torch.nn.Linear(256, 128) for name in names}


def test_modules_that_an_engine_merges_are_one_layer() -> None:
    block = "model.layers.0"
    names = [
        *(f"{block}.self_attn.{part}_proj" for part in "qkvo"),
        *(f"{block}.mlp.{part}_proj" for part in ("gate", "up", "down")),
    ]
    merged = {layer.name: list(layer.modules) for layer in merged_layers(linears(*names))}
    assert merged == {
        f"{block}.self_attn.qkv_proj": names[:3],
        f"{block}.self_attn.o_proj": names[3:4],
        f"{block}.mlp.gate_up_proj": names[4:6],
        f"{block}.mlp.down_proj": names[6:],
    }


def test_all_experts_of_a_layer_are_one() -> None:
    names = [f"model.layers.1.mlp.experts.{number}.down_proj" for number in range(3)]
    (layer,) = merged_layers(linears(*names, "model.layers.1.mlp.experts.0.up_proj"))
    assert layer.name == "model.layers.1.mlp.experts"


@pytest.mark.parametrize(
    ("weights", "bits"),
    [
        (INT4, 4 + 16 / 128),
        (replace(INT4, symmetric=False), 4 + (16 + 4) / 128),
        (replace(INT4, bits=8, group_size=64), 8 + 16 / 64),
        (NumberFormat(type="float", bits=8, strategy="channel"), 8 + 16 / 256),
        (None, 16),
    ],
)
def test_bits_count_the_scales(weights: NumberFormat | None, bits: float) -> None:
    (layer,) = merged_layers(linears("model.layers.0.mlp.down_proj"))
    assert layer.bits(LayerFormat("tried", weights)) == bits * 256 * 128


def test_no_group_is_wider_than_the_recipes_own() -> None:
    formats = layer_formats(recipe("recipe.weights.group_size=64", ALL))
    sizes = {entry.name: entry.weights.group_size for entry in formats if entry.weights}
    assert sizes == {"w4a16_g64": 64, "w4a16_g32": 32, "w8a16": 64}


def test_a_format_that_is_the_recipes_own_is_no_second_one() -> None:
    names = [entry.name for entry in layer_formats(recipe("recipe.weights.group_size=32", ALL))]
    assert names == ["w4a16_g32", "w8a16", "original"]
