"""Clipping after AWQ's scales, against float64 formulas that are written out here."""

import pytest
import torch
from torch.nn import Linear

from quantize.calibrate.awq.rounding import (
    CLIPPING_RATIOS,
    clip,
    diagonal_blocks,
    minmax_observers,
    rounded,
)
from quantize.calibrate.awq.search import gram_search
from quantize.steps.awq import SEARCH_SEQUENCES
from tests.quantize.calibrate.awq.test_search import (
    SCHEMES,
    made_model,
    quantize_linears,
    scale,
    token_batches,
)

ROWS, COLUMNS, TOKENS = 12, 64, 200
OUTLIER = (3, 40)


def made_layer(weights: str) -> Linear:
    torch.manual_seed(2)
    layer = Linear(COLUMNS, ROWS, bias=False)
    layer.weight.data = torch.randn(ROWS, COLUMNS)
    layer.weight.data[OUTLIER] = 5.0  # of little use: its input is small
    holder = torch.nn.Sequential(layer)
    quantize_linears(holder, SCHEMES[weights])
    return layer


def made_inputs() -> torch.Tensor:
    generator = torch.Generator().manual_seed(4)
    mixing = torch.eye(COLUMNS) + torch.randn(COLUMNS, COLUMNS, generator=generator) / 20
    inputs = torch.randn(TOKENS, COLUMNS, generator=generator) @ mixing
    inputs[:, OUTLIER[1]] /= 100
    return inputs


def group_losses(layer: Linear, target: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """The squared error of each row's output through each group alone, when the layer is rounded
    as it stands."""
    size = layer.quantization_scheme.weights.group_size or COLUMNS
    with minmax_observers([layer], layer):
        stored = rounded({layer: layer.weight.data.clone()})[layer]
    errors = (stored.double() - target.double()).unflatten(1, (-1, size))
    outputs = torch.einsum("rgi,tgi->trg", errors, inputs.double().unflatten(1, (-1, size)))
    return outputs.square().sum(0)


def clipped(layer: Linear, inputs: torch.Tensor, scales: torch.Tensor) -> None:
    clip([layer], layer, {layer: diagonal_blocks(layer, inputs.t() @ inputs, scales)})


@pytest.mark.parametrize("weights", SCHEMES)
def test_no_group_loses_and_an_outlier_is_cut(weights: str) -> None:
    layer, inputs = made_layer(weights), made_inputs()
    scales = torch.rand(COLUMNS, generator=torch.Generator().manual_seed(6)) + 0.5
    target = layer.weight.detach().clone()
    before = group_losses(layer, target, inputs / scales)
    clipped(layer, inputs, scales)
    after = group_losses(layer, target, inputs / scales)
    assert (after <= before * (1 + 1e-5)).all()
    assert (after < before * 0.99).any()
    assert (layer.weight.abs() <= target.abs()).all()
    kept = layer.weight == target
    smallest = min(CLIPPING_RATIOS) * target.abs().max()
    assert kept[target.abs() < target.abs().median()].all()
    assert layer.weight.abs().max() >= smallest


@pytest.mark.parametrize("weights", ["int4, zero points", "int4", "int8, channel"])
def test_the_outliers_group_gains(weights: str) -> None:
    layer, inputs = made_layer(weights), made_inputs()
    target = layer.weight.detach().clone()
    size = layer.quantization_scheme.weights.group_size or COLUMNS
    place = OUTLIER[0], OUTLIER[1] // size
    before = group_losses(layer, target, inputs)[place]
    clipped(layer, inputs, torch.ones(COLUMNS))
    assert layer.weight[OUTLIER] < target[OUTLIER]
    assert group_losses(layer, target, inputs)[place] < before * 0.7


def test_a_global_scale_stays() -> None:
    """Groups are clipped one by one, which must not change the scale that all of them share."""
    layer, inputs = made_layer("nvfp4"), made_inputs()
    largest = layer.weight.abs().max()
    clipped(layer, inputs, torch.ones(COLUMNS))
    assert layer.weight.abs().max() == largest


def test_queries_and_keys_are_not_clipped() -> None:
    batches = token_batches(8, 4)
    scaled = scale(made_model("llama"), batches, lambda: gram_search(SEARCH_SEQUENCES, clips=False))
    clipped_weights = scale(
        made_model("llama"), batches, lambda: gram_search(SEARCH_SEQUENCES, clips=True)
    )
    for name, weight in scaled.items():
        if not name.endswith("_proj.weight"):
            continue
        is_kept = torch.equal(clipped_weights[name], weight)
        assert is_kept == ("q_proj" in name or "k_proj" in name), name
        assert (clipped_weights[name].abs() <= weight.abs()).all()
