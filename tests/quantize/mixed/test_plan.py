"""Limits that cannot be kept, and formats that do not fit, are found before any weight is read."""

from pathlib import Path

import pytest
import torch

from conf.errors import QuantlineError
from conf.schema.model import ModelConfig
from quantize.mixed.merged import PART_BYTES, merged_layers, parts_in_memory
from quantize.preflight import preflight
from quantize.preflight_plan import Preflight
from tests.conftest import quantize_config


def check(source: Path, *options: str) -> Preflight:
    return preflight(source, quantize_config("model=tiny", *options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["bits=2"], "bits=2: the smallest format of recipe=auto takes 4.125 bits a weight"),
        (["recipe.auto.bits=4.1"], "bits=4.1: the smallest format"),
        (["bits=16"], "bits=16: all layers could have the largest format of recipe=auto, 16.000"),
        (["bits=17"], "bits=17.0: must be more than 0 and at most 16"),
        (["min_recovery=1.1"], "min_recovery=1.1: must be more than 0 and at most 0.9999"),
        (["recipe.auto.min_recovery=1"], "recipe.auto.min_recovery=1.0: must be more than 0"),
        (["bits=5", "min_recovery=0.9"], "bits=5 and min_recovery=0.9: give one limit"),
        (["recipe.auto.formats=[]"], r"recipe.auto.formats=\[\]: name at least one"),
        (["recipe.auto.formats=[w9a16]"], "recipe.auto.formats=w9a16: choose one of"),
        (["recipe.steps=[awq,rounding]"], "recipe.steps: awq has one format for all layers"),
        (["recipe=w4a16_gptq", "bits=5"], "bits=5: recipe=w4a16_gptq has one format"),
        (["group_size=96"], "group size 96 does not divide"),
    ],
)
def test_what_cannot_be_kept_is_refused(
    tiny: tuple[ModelConfig, Path], options: list[str], message: str
) -> None:
    with pytest.raises(QuantlineError, match=message) as error:
        check(tiny[1], "recipe=auto", *options)
    assert error.value.exit_code == 2


def test_an_option_of_a_part_that_is_null_is_explained() -> None:
    with pytest.raises(
        QuantlineError, match=r"part that is null here, as recipe\.auto.* in a recipe file"
    ):
        quantize_config("recipe=w4a16_gptq", "recipe.auto.bits=5")


def test_options_of_a_part_that_is_null_are_explained_when_they_are_given_together() -> None:
    with pytest.raises(QuantlineError, match=r"recipe\.auto: is null here.* in a recipe file"):
        quantize_config("recipe=w4a16_gptq", "recipe.auto={formats:[original]}")


def test_the_plan_names_the_limit_and_every_kernel(tiny: tuple[ModelConfig, Path]) -> None:
    lines = check(tiny[1], "recipe=auto", "min_recovery=0.99").lines()
    formats = "w4a16_g128, w8a16, original"
    assert f"each layer gets one of {formats}: a predicted recovery of 0.99" in lines
    kernels = [line for line in lines if "vLLM will run it" in line]
    assert [line.partition(":")[0] for line in kernels] == ["w4a16_g128", "w8a16"]


def test_the_trials_count_as_time(tiny: tuple[ModelConfig, Path]) -> None:
    few, many = (
        check(tiny[1], "recipe=auto", f"recipe.auto.samples={samples}").calibration_s
        for samples in (1, 1000)
    )
    assert many > few
    assert check(tiny[1], "recipe=auto", "recipe.auto.length=8").recipe.needs_text


def test_the_plan_counts_what_trials_hold(tiny: tuple[ModelConfig, Path]) -> None:
    """The original's predictions of all judged tokens, and at least those of one batch again."""
    few, many = (
        check(tiny[1], "recipe=auto", f"recipe.auto.samples={samples}", "calibration.samples=4000")
        for samples in (4, 2000)
    )
    vocabulary = 1024
    assert many.gpu_gib - few.gpu_gib > (2000 - 4) * 256 * vocabulary * 4 / 2**30


def test_trials_of_many_tokens_are_made_in_parts() -> None:
    modules = {f"layers.{n}.mlp.down_proj": torch.nn.Linear(64, 64) for n in range(4)}
    layers = merged_layers(modules)
    assert layers[0].trial_bytes(tokens=10) == (64 * 64 + 10 * (64 + 64)) * 4
    assert len(list(parts_in_memory(layers, tokens=10))) == 1
    tokens = PART_BYTES // (2 * 128 * 4)  # two layers hold more
    assert len(list(parts_in_memory(layers, tokens))) == 4


def test_experts_hold_the_tokens_that_they_are_given() -> None:
    modules = {f"mlp.experts.{n}.down_proj": torch.nn.Linear(64, 32) for n in range(128)}
    (layer,) = merged_layers(modules)
    assert layer.trial_bytes(tokens=10) == (128 * 64 * 64 + 10 * 8 * (64 + 32)) * 4
