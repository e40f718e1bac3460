"""The estimates of time and GPU memory, against what was measured."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from conf.schema.steps import known_steps
from quantize.estimate import (
    CPU,
    H200,
    LayerShape,
    Text,
    activation_budget,
    block_bytes,
    calibration_seconds,
    inner_bytes,
    other_seconds,
    rates,
    step_bytes,
    stream_bytes,
)
from quantize.models.architecture_config import architecture_config
from quantize.models.experts import linear_experts
from quantize.steps.base.step import steps_named
from tests.conftest import quantize_config

GIB = 2**30
MEASURED_TEXT = Text(samples=256, length=2048, batch_size=8)


def shape_of(config: Any) -> LayerShape:
    with torch.device("meta"):
        return LayerShape.of(AutoModelForCausalLM.from_config(config))


@pytest.fixture(scope="module")
def qwen() -> LayerShape:
    """Two layers of Qwen3-8B's width."""
    return shape_of(
        Qwen3Config(
            hidden_size=4096,
            intermediate_size=12288,
            num_hidden_layers=2,
            num_attention_heads=32,
            num_key_value_heads=8,
            head_dim=128,
            vocab_size=256,
        )
    )


def test_a_mixture_has_the_products_of_all_experts_at_once() -> None:
    """X'X of what all eight experts read, of what each computes inside, and two of attention. A
    pass holds the insides, of 256 columns each."""
    architecture = quantize_config("model=tiny-moe").model.architecture
    assert architecture is not None
    config = architecture_config(architecture)
    with linear_experts(config.model_type):
        shape = shape_of(config)
    assert shape.squared_widths == 11 * 256**2
    (gptq,) = steps_named(["gptq"])
    dense = replace(shape, experts_inside=0)
    assert step_bytes(gptq, shape, 0) - step_bytes(gptq, dense, 0) == 11 * 256**2 * 4
    (smooth,) = steps_named(["smoothquant"])
    many = 2**16
    assert step_bytes(smooth, shape, many) - step_bytes(smooth, dense, many) == many * 2 * 8 * 256
    text = Text(samples=4, length=128, batch_size=2)
    assert block_bytes([gptq], dense, text) > 0
    assert block_bytes([gptq], shape, text) == inner_bytes([gptq], shape, text) == 0


def seconds_a_layer(shape: LayerShape, *steps: str, text: Text = MEASURED_TEXT) -> float:
    recipe = quantize_config("recipe=w8a8_smooth_ptq").recipe
    whole = calibration_seconds(recipe, steps_named(steps), shape, text, H200)
    return (whole - H200.start_seconds - len(steps) * H200.step_seconds) / shape.layers


def recipe_seconds(shape: LayerShape, name: str) -> float:
    """Of one layer, in a whole recipe: steps may share passes."""
    recipe = quantize_config(f"recipe={name}").recipe
    steps = steps_named(recipe.steps)
    deeper = replace(shape, layers=shape.layers + 1)
    return calibration_seconds(recipe, steps, deeper, MEASURED_TEXT, H200) - calibration_seconds(
        recipe, steps, shape, MEASURED_TEXT, H200
    )


def test_a_layer_without_the_head(qwen: LayerShape) -> None:
    columns, rows = 4096, 12288
    assert qwen.weights == columns * (2 * columns + 2 * columns // 4 + 3 * rows)
    assert qwen.squared_widths == 3 * columns**2 + rows**2
    assert (qwen.layers, qwen.hidden, qwen.widest) == (2, columns, rows)


@pytest.mark.parametrize(
    ("recipe", "measured"),
    [
        ("w4a16_gptq", 0.777),
        ("w8a8_smooth_gptq", 0.813),
        ("w8a8_sparse_smooth_gptq", 1.451),
        ("w8a16_awq", 1.439),
        ("w4a16_awq", 1.521),
    ],
)
def test_the_time_of_a_layer_is_near_the_measured(
    recipe: str, measured: float, qwen: LayerShape
) -> None:
    assert recipe_seconds(qwen, recipe) == pytest.approx(measured, rel=0.25)


def test_the_time_of_all_layers_is_near_the_measured(qwen: LayerShape) -> None:
    """Of w4a16_awq on all 36 layers of Qwen3-8B: 63.6 s to calibrate, 115 s for the rest."""
    recipe = quantize_config("recipe=w4a16_awq").recipe
    whole = replace(qwen, layers=36)
    steps = steps_named(recipe.steps)
    seconds = calibration_seconds(recipe, steps, whole, MEASURED_TEXT, H200)
    assert seconds == pytest.approx(63.6, rel=0.25)
    assert other_seconds(8_190_735_360) == pytest.approx(115, rel=0.25)


def test_the_time_of_the_readmes_run_on_a_cpu_is_near_the_measured() -> None:
    shape = shape_of(
        LlamaConfig(
            hidden_size=576,
            intermediate_size=1536,
            num_hidden_layers=30,
            num_attention_heads=9,
            num_key_value_heads=3,
            vocab_size=256,
        )
    )
    steps, text = steps_named(["smoothquant", "gptq"]), Text(16, 256, 8)
    seconds = calibration_seconds(quantize_config().recipe, steps, shape, text, CPU)
    assert seconds == pytest.approx(95, rel=0.25)


def test_more_text_takes_longer_but_not_to_solve(qwen: LayerShape) -> None:
    twice = Text(512, 2048, 8)
    assert seconds_a_layer(qwen, "smoothquant", text=twice) == pytest.approx(
        2 * seconds_a_layer(qwen, "smoothquant")
    )
    ratio = seconds_a_layer(qwen, "gptq", text=twice) / seconds_a_layer(qwen, "gptq")
    assert 1.6 < ratio < 2


def test_rounding_passes_only_for_static_scales() -> None:
    step = steps_named(["rounding"])[0]
    dynamic = quantize_config("recipe=fp8_dynamic").recipe
    assert step.passes_for(dynamic, 8) == 0
    assert step.passes_for(replace(dynamic, kv_cache="fp8"), 8) == 2


def test_another_gpu_is_scaled_by_its_peak() -> None:
    assert rates(989, on_gpu=True) == rates(None, on_gpu=True) == H200
    assert rates(494.5, on_gpu=True).passes == pytest.approx(H200.passes / 2)
    assert rates(989, on_gpu=False) == CPU


@pytest.mark.parametrize(("name", "measured"), [("gptq", 15.45), ("awq", 8.74)])
def test_the_peak_is_near_the_measured(name: str, measured: float, qwen: LayerShape) -> None:
    steps = steps_named([name])
    kept = [part(steps, qwen, MEASURED_TEXT) for part in (block_bytes, inner_bytes)]
    peak = stream_bytes(qwen, MEASURED_TEXT) + sum(kept)
    peak += step_bytes(steps[0], qwen, MEASURED_TEXT.batch_tokens)
    assert peak / GIB == pytest.approx(measured, rel=0.25)


def test_a_step_in_stages_keeps_what_attention_gives_and_the_inside_of_an_mlp(
    qwen: LayerShape,
) -> None:
    tokens, gptq, smoothquant = MEASURED_TEXT.tokens, steps_named(["gptq"]), ["smoothquant"]
    assert block_bytes(gptq, qwen, MEASURED_TEXT) == tokens * 4096 * 2
    assert stream_bytes(qwen, MEASURED_TEXT) + block_bytes(gptq, qwen, MEASURED_TEXT) + inner_bytes(
        gptq, qwen, MEASURED_TEXT
    ) == pytest.approx(12 * GIB), "not all of it"
    little = Text(16, 2048, 8)
    assert inner_bytes(gptq, qwen, little) == little.tokens * 12288 * 2
    assert block_bytes(steps_named(smoothquant), qwen, MEASURED_TEXT) == 0
    assert inner_bytes(steps_named(smoothquant), qwen, MEASURED_TEXT) == 0


def test_the_peak_counts_the_next_layers_weights(qwen: LayerShape) -> None:
    for step in steps_named(known_steps()):
        own = step.gpu_bytes(qwen.weights, qwen.widest)
        assert step_bytes(step, qwen, batch_tokens=0) == own + 6 * qwen.weights


@pytest.mark.parametrize(
    ("free", "needed", "budget"), [(100, 8, 50), (20, 8, 10), (16, 8, 6), (10, 8, 0), (4, 8, 0)]
)
def test_activations_leave_room_for_the_step(free: float, needed: float, budget: float) -> None:
    assert activation_budget(free, needed) == budget
