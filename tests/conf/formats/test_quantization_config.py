"""The one reader of a quantization config."""

from typing import Any

import pytest
from compressed_tensors import quantization as library

from conf.errors import QuantlineError
from conf.formats.quant_args import DYNAMIC, LOCAL, QuantArgs, QuantizationConfig
from conf.formats.quantization_config import quantization_of, read_quantization
from conf.formats.registry import format_of, formats, spellings

TOKEN = {"strategy": "token", "dynamic": True}


def read(content: dict[str, Any]) -> QuantizationConfig:
    config = read_quantization(content, "config.json")
    assert config is not None
    return config


def groups(**group: Any) -> dict[str, Any]:
    return {"config_groups": {"group_0": {"targets": ["Linear"]} | group}}


@pytest.mark.parametrize("content", [None, {}])
def test_a_model_without_a_quantization_config_is_not_quantized(content: Any) -> None:
    assert quantization_of({"quantization_config": content}) is None
    assert quantization_of({}) is None


@pytest.mark.parametrize(
    "weights",
    [
        {},
        {"group_size": 128},
        {"group_size": -1},
        {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": False},
        {"type": "float", "strategy": "block", "block_structure": "128x64"},
        {"type": "FLOAT", "strategy": "Channel"},
        {"type": "float", "num_bits": 4, "strategy": "tensor_group", "group_size": 16,
         "dynamic": "local", "scale_dtype": "torch.float8_e4m3fn"},
    ],
)  # fmt: skip
def test_what_is_not_written_is_what_compressed_tensors_takes(weights: dict[str, Any]) -> None:
    content = groups(weights=weights, input_activations=TOKEN)
    completed = library.QuantizationConfig.model_validate(content).model_dump(mode="json")
    ours, theirs = read(content).groups[0], read(completed).groups[0]
    assert ours.weights == theirs.weights
    assert ours.activations == theirs.activations


def test_a_group_says_how_its_modules_are_stored() -> None:
    content = groups(weights={"num_bits": 8}, input_activations=TOKEN, format="int-quantized")
    content |= {
        "quant_method": "compressed-tensors",
        "format": "mixed-precision",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "kv_cache_scheme": {"num_bits": 8, "type": "float"},
        "sparsity_config": {"format": "sparse-24-bitmask"},
    }
    content["config_groups"]["head"] = {"targets": ["re:.*lm_head$"], "weights": {"num_bits": 4}}
    config = read(content)
    body, head = config.groups
    assert (body.format, body.own_format) == ("int-quantized", "int-quantized")
    assert (head.format, head.own_format, head.is_head) == ("mixed-precision", "", True)
    assert not body.is_head
    assert body.activations == QuantArgs("int", 8, "token", scales=DYNAMIC)
    assert config.kv_cache == QuantArgs("float", 8, "tensor")
    assert (config.method, config.status) == ("compressed-tensors", "compressed")
    assert (config.ignore, config.sparsity) == (["lm_head"], "sparse-24-bitmask")


def test_local_scales_are_neither_static_nor_dynamic() -> None:
    group = read(groups(weights={"strategy": "tensor_group", "group_size": 16, "dynamic": "local"}))
    weights = group.groups[0].weights
    assert weights is not None
    assert (weights.scales, weights.dynamic) == (LOCAL, "local")


@pytest.mark.parametrize(
    ("content", "name", "weights"),
    [
        (
            {"quant_method": "awq", "w_bit": 4, "q_group_size": 64},
            "weight_only_int",
            QuantArgs("int", 4, "group", 64),
        ),
        (
            {"quant_method": "gptq", "bits": 8, "group_size": -1},
            "weight_only_int",
            QuantArgs("int", 8, "channel"),
        ),
        (
            {"quant_method": "fp8", "weight_block_size": [128, 128]},
            "fp8",
            QuantArgs("float", 8, "block", block_structure=[128, 128]),
        ),
        ({"quant_method": "fbgemm_fp8"}, "fp8", QuantArgs("float", 8, "tensor")),
        ({"quant_method": "hqq", "bits": 3, "group_size": 64}, None, QuantArgs("", 3, "group", 64)),
    ],
)
def test_a_config_of_another_tool_is_one_group(
    content: dict[str, Any], name: str | None, weights: QuantArgs
) -> None:
    (group,) = read(content).groups
    assert group.weights == weights
    stored = format_of(group)
    assert (stored.name if stored else None) == name


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (groups(weights={"num_bits": "8"}), r"config_groups\.group_0\.weights\.num_bits is '8'"),
        (groups(weights={"num_bits": 0}), r"num_bits is 0; should be greater than"),
        (groups(weights={"block_structure": "wide"}), "block_structure is 'wide'"),
        (groups(weights={"dynamic": "often"}), "dynamic is 'often'"),
        ({"quant_method": "gptq", "bits": 99}, "bits is 99"),
        ({"ignore": [1]}, r"ignore\.0 is 1"),
    ],
)
def test_a_value_that_cannot_be_is_named(content: dict[str, Any], message: str) -> None:
    with pytest.raises(QuantlineError, match=message) as caught:
        read_quantization(content, "config.json")
    assert caught.value.exit_code == 2


def test_every_spelling_has_formats_and_every_format_a_name_of_its_own() -> None:
    names = [stored.name for stored in formats()]
    assert sorted(set(names)) == names
    assert {"int8", "fp8", "weight_only_int", "nvfp4", "sparse24", "unquantized"} <= {*names}
    assert "pack-quantized" in spellings()
