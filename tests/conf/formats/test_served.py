"""Formats that an engine runs, orders that undo a step, patterns that are none."""

import dataclasses
from typing import Any

import pytest
from omegaconf import OmegaConf

from conf.compose import compose, to_object
from conf.errors import QuantlineError
from conf.formats.quant_args import DYNAMIC, LOCAL, STATIC, QuantArgs
from conf.formats.served import kv_refusal, refusal
from conf.schema.number_format import NumberFormat
from conf.schema.recipe import RecipeConfig, check_pattern
from quantize.command import COMMAND as QUANTIZE

INT8 = {"type": "int", "bits": 8, "strategy": "channel"}
FP8 = {"type": "float", "bits": 8, "strategy": "channel"}
NVFP4 = {
    "type": "float",
    "bits": 4,
    "strategy": "tensor_group",
    "group_size": 16,
    "scale_type": "fp8",
}
MXFP4 = {
    "type": "float",
    "bits": 4,
    "strategy": "group",
    "group_size": 32,
    "scale_type": "e8m0",
}
BLOCK = {"type": "float", "bits": 8, "strategy": "block", "block_structure": [128, 128]}
TOKEN = {"strategy": "token", "dynamic": True}


def recipe(**fields: Any) -> RecipeConfig:
    content = {"name": "made", "steps": ["rounding"]} | fields
    return to_object(OmegaConf.merge(OmegaConf.structured(RecipeConfig), content))


def grouped(size: int, **more: Any) -> dict[str, Any]:
    return {"type": "int", "bits": 4, "strategy": "group", "group_size": size} | more


@pytest.mark.parametrize(
    ("weights", "activations", "message"),
    [
        (INT8 | {"bits": 9}, None, "weights.bits=9: must be at least 2 and at most 8"),
        (INT8 | {"bits": 4}, INT8 | TOKEN, "recipe.weights.bits=4: int weights with quantized"),
        (
            INT8,
            INT8 | TOKEN | {"bits": 3},
            "recipe.activations.bits=3: activations must have as many",
        ),
        (INT8, FP8 | TOKEN, "recipe.activations.type=float: no kernel multiplies int weights with"),
        (INT8 | {"symmetric": False}, INT8 | TOKEN, "recipe.weights.symmetric=false: INT8 kernels"),
        (INT8 | {"dynamic": True}, None, "recipe.weights.dynamic=true: weights have static scales"),
        (
            INT8 | {"strategy": "tensor"},
            None,
            "recipe.weights.strategy=tensor: weight-only kern",
        ),
        (INT8 | {"strategy": "token"}, None, "recipe.weights.strategy=token: weight-only kernels"),
        (INT8 | {"scale_type": "fp8"}, None, "recipe.weights.scale_type=fp8: scales of int weigh"),
        (INT8, INT8, "recipe.activations.strategy=channel: activations need strategy token"),
        (INT8, INT8 | {"strategy": "token"}, "recipe.activations.dynamic=false: activations need"),
        (INT8, INT8 | {"strategy": "tensor", "dynamic": True}, "recipe.activations.dynamic=true"),
        (INT8, grouped(128, bits=8, dynamic=True), "recipe.activations.strategy=group"),
        (INT8 | {"group_size": 128}, None, "recipe.weights.strategy=channel with group_size=128"),
        (INT8 | {"strategy": "group"}, None, "recipe.weights.strategy=group with group_size=None"),
        (grouped(7), None, "recipe.weights.group_size=7: weight-only kernels take groups that are"),
        (grouped(0), None, "weights.group_size=0: must be at least 1"),
        (grouped(128), INT8 | TOKEN, "recipe.weights.bits=4: int weights with quantized"),
        (grouped(64), FP8 | TOKEN, "recipe.weights.group_size=64: int4 weights with FP8 activati"),
        (grouped(128, symmetric=False), FP8 | TOKEN, "weights.symmetric=false: int4 weights with"),
        (INT8 | {"bits": 4}, FP8 | TOKEN, "recipe.weights.strategy=channel: int4 weights with FP"),
        (grouped(128), FP8 | {"strategy": "tensor"}, "activations.strategy=tensor: FP8 activation"),
        (grouped(128), FP8 | {"strategy": "token"}, "activations.dynamic=false: FP8 activations o"),
        (grouped(128), FP8 | TOKEN | {"bits": 4}, "recipe.activations.bits=4: float activations"),
        (FP8 | {"bits": 5}, None, "recipe.weights.bits=5: float weights have 8 bits"),
        (FP8 | {"symmetric": False}, None, "recipe.weights.symmetric=false: float formats have no"),
        (FP8, FP8 | TOKEN | {"symmetric": False}, "recipe.activations.symmetric=false: float form"),
        (FP8 | {"strategy": "group", "group_size": 7}, None, "recipe.weights.strategy=group: FP8"),
        (BLOCK | {"block_structure": [0, 128]}, None, "block_structure=0: must be at least 1"),
        (BLOCK | {"block_structure": [128]}, None, r"block_structure=\[128\]: give rows and colu"),
        (BLOCK | {"block_structure": [64, 128]}, None, "FP8 block kernels take blocks of 128 x 12"),
        (BLOCK | {"block_structure": None}, None, "strategy=block with block_structure=None"),
        (BLOCK, FP8 | TOKEN, "recipe.activations.strategy=token: weights in blocks go with activ"),
        (
            BLOCK,
            grouped(64, type="float", bits=8, dynamic=True),
            "activations.group_size=64: gro",
        ),
        (
            BLOCK,
            grouped(128, type="float", bits=8),
            "activations.dynamic=false: activations in",
        ),
        (NVFP4 | {"group_size": 32}, None, "recipe.weights.group_size=32: NVFP4 has groups of 16"),
        (NVFP4 | {"scale_type": None}, None, "recipe.weights.scale_type=None: NVFP4 has fp8 scal"),
        (NVFP4 | {"strategy": "group"}, None, "recipe.weights.strategy=group: 4-bit floats are NV"),
        (NVFP4, NVFP4, "activations.dynamic=false: NVFP4 activations have a calibrated scale"),
        (MXFP4, None, "weights.scale_type=e8m0: vLLM rounds the activations of MXFP4 weights"),
        (MXFP4, MXFP4, "activations.dynamic=false: MXFP4 activations need dynamic: true"),
        (MXFP4 | {"group_size": 16}, None, "weights.group_size=16: MXFP4 has strategy group"),
        (MXFP4, NVFP4 | {"dynamic": True}, "activations.strategy=tensor_group: MXFP4 has strategy"),
        (FP8 | {"scale_type": "e8m0"}, None, "weights.scale_type=e8m0: scales of FP8 weights are"),
        (None, INT8 | TOKEN, "recipe.steps=.rounding.: no step rounds|recipe.activations: needs"),
    ],
)
def test_a_format_that_no_engine_runs_is_refused(
    weights: dict[str, Any] | None, activations: dict[str, Any] | None, message: str
) -> None:
    with pytest.raises(QuantlineError, match=message) as error:
        recipe(weights=weights, activations=activations)
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("weights", "activations"),
    [
        *[
            (grouped(size, bits=bits), None)
            for size in (16, 32, 96, 128, 256)
            for bits in (2, 5, 8)
        ],
        (grouped(128, symmetric=False), None),
        (INT8 | {"bits": 3, "symmetric": False}, None),
        (grouped(128), FP8 | TOKEN),
        (INT8, INT8 | TOKEN),
        (INT8, INT8 | TOKEN | {"symmetric": False}),
        (INT8 | {"strategy": "tensor"}, INT8 | {"strategy": "tensor"}),
        (FP8, None),
        (FP8 | {"strategy": "tensor"}, FP8 | {"strategy": "tensor"}),
        (FP8, FP8 | {"strategy": "tensor", "dynamic": True}),
        (BLOCK, None),
        (BLOCK, grouped(128, type="float", bits=8, dynamic=True)),
        (NVFP4, None),
    ],
)
def test_a_format_that_an_engine_runs_is_taken(
    weights: dict[str, Any], activations: dict[str, Any] | None
) -> None:
    made = recipe(weights=weights, activations=activations)
    assert made.weights is not None
    assert made.weights.bits == weights["bits"]


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([], r"recipe.steps=\[\]: name at least one step"),
        (["gptq", "smoothquant"], "the last step has to round, and no other .* undoes it"),
        (["gptq", "awq", "rounding"], "the last step has to round"),
        (["rounding", "sparsegpt"], "the last step has to round"),
        (["rounding", "gptq"], "the last step has to round, and no other"),
        (["gptq", "gptq"], "gptq is named twice"),
        (["smoothquant", "awq"], "the last step has to round"),
        (["awq", "smoothquant", "gptq"], "undoes awq; the order is smoothquant, awq"),
        (["awq", "sparsegpt", "smoothquant", "gptq"], "undoes awq; the order is smoothquant, awq"),
    ],
)
def test_an_order_that_undoes_a_step_is_refused(steps: list[str], message: str) -> None:
    with pytest.raises(QuantlineError, match=message):
        recipe(steps=steps)


@pytest.mark.parametrize(
    "steps",
    [
        ["smoothquant", "awq", "sparsegpt", "rounding"],
        ["sparsegpt", "smoothquant", "gptq"],
        ["smoothquant", "sparsegpt", "gptq"],
        ["awq", "autoround"],
    ],
)
def test_an_order_that_keeps_every_step_is_taken(steps: list[str]) -> None:
    assert recipe(steps=steps).steps == steps


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"steps": ["autoround"], "weights": FP8}, "autoround works only with int weights"),
        ({"steps": ["sparsegpt", "gptq"], "weights": FP8}, "sparsegpt works only with int weights"),
        ({"steps": ["sparsegpt", "gptq"], "weights": grouped(128, symmetric=False)}, "symmetric=t"),
        ({"steps": ["sparsegpt", "gptq"], "sparsegpt": {"block_size": 6}}, "a multiple of 4"),
        (
            {
                "steps": ["awq", "rounding"],
                "weights": INT8 | {"strategy": "tensor"},
                "activations": INT8 | {"strategy": "tensor"},
            },
            "awq with duo_scaling needs a scale for each channel or group",
        ),
        ({"steps": ["sparsegpt"], "weights": None, "kv_cache": "fp8"}, "recipe.kv_cache: needs"),
        ({"steps": ["sparsegpt"], "weights": None, "lm_head": "int8"}, "recipe.lm_head: needs"),
        ({"kv_cache": "int4"}, "kv_cache=int4: choose one of fp8"),
        ({"targets": []}, r"recipe.targets=\[\]: name the modules to quantize"),
        ({"targets": [""]}, "targets='': must not be empty"),
        ({"targets": ["re:("]}, r"recipe.targets: 're:\(' is no regular expression: missing \)"),
        ({"ignore": ["lm_head", "re:*"]}, "recipe.ignore: 're:\\*' is no regular expression"),
        ({"ignore": ["re:"]}, "recipe.ignore: 're:' has no expression"),
        ({"ignore": ["x" * 2000]}, "at most 1000"),
    ],
)
def test_what_does_not_go_together_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(QuantlineError, match=message):
        recipe(**fields)


def test_options_of_a_step_that_is_not_there_change_nothing() -> None:
    """A recipe may build on another and drop a step; its options are left over."""
    made = recipe(steps=["rounding"], gptq={"dampening": 0.5}, sparsegpt={"block_size": 6})
    assert made.steps == ["rounding"]


def test_a_recipe_file_takes_no_options_beside_it() -> None:
    for option in ("recipe.steps=[gptq]", "recipe.smoothquant.smoothing_strength=0.3"):
        with pytest.raises(QuantlineError, match=option.split("=")[0]):
            compose(QUANTIZE, ["recipe.file=x.yaml", option])
    with pytest.raises(QuantlineError, match="must not be empty"):
        compose(QUANTIZE, ["recipe.file="])
    assert compose(QUANTIZE, ["recipe.file=x.yaml", "recipe.gptq.max_fallback=1"]).recipe.file


def test_a_kv_cache_is_fp8_with_static_scales() -> None:
    good = QuantArgs("float", 8, "tensor")
    assert kv_refusal(good) is None
    for change in (
        {"type": "int"},
        {"bits": 4},
        {"strategy": "token"},
        {"symmetric": False},
        {"scales": DYNAMIC},
        {"scale_type": "fp8"},
    ):
        assert kv_refusal(dataclasses.replace(good, **change)) is not None, change


def test_nvfp4_activations_have_local_scales() -> None:
    weights = NumberFormat(**NVFP4).stored
    for scales, expected in ((LOCAL, None), (STATIC, "dynamic"), (DYNAMIC, "dynamic")):
        found = refusal(weights, dataclasses.replace(weights, scales=scales))
        assert (found.field if found else None) == expected


@pytest.mark.parametrize("pattern", ["Linear", "lm_head", "re:.*_proj$", "re:.*\\.[0-3]"])
def test_a_pattern_is_a_name_or_an_expression(pattern: str) -> None:
    check_pattern("recipe.targets", pattern)


def test_only_rounding_makes_scales_of_powers_of_two() -> None:
    activations = MXFP4 | {"dynamic": True}
    assert not recipe(weights=MXFP4, activations=activations).needs_text
    with pytest.raises(QuantlineError, match=r"weights.scale_type=e8m0: gptq does not make such"):
        recipe(weights=MXFP4, activations=activations, steps=["gptq"])


def test_activations_with_a_calibrated_scale_need_text() -> None:
    assert recipe(weights=NVFP4, activations=NVFP4 | {"dynamic": True}).needs_text
    assert not recipe(weights=NVFP4).needs_text
