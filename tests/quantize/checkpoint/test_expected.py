"""The tensors that a stored format names are those that compressed-tensors writes."""

import pytest
import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
from transformers import LlamaConfig, LlamaForCausalLM

from conf.compose import compose
from quantize.checkpoint.verify.expected import expect
from quantize.checkpoint.verify.schemes import read_schemes
from quantize.command import COMMAND
from quantize.describe import TYPES
from quantize.steps.base.formats import formats

RECIPES = {
    "fp8_block": "fp8",
    "fp8_dynamic": "fp8",
    "mxfp4": "mx",
    "nvfp4": "nvfp4_activations",
    "nvfp4a16": "nvfp4",
    "w4a16_gptq": "weight_only_int",
    "w4afp8_awq": "w4afp8",
    "w8a16_gptq": "weight_only_int",
    "w8a8_smooth_gptq": "int8",
}
SHAPE = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "tie_word_embeddings": False,
}


def made(device: str) -> LlamaForCausalLM:
    with torch.device(device):
        return LlamaForCausalLM(LlamaConfig(**SHAPE)).to(torch.bfloat16)


@pytest.mark.parametrize(
    ("recipe", "options", "name"),
    [
        *[(recipe, [], name) for recipe, name in RECIPES.items()],
        ("fp8_dynamic", ["recipe.lm_head=int4"], "fp8"),
        ("w4a16_gptq", ["recipe.weights.symmetric=false"], "weight_only_int"),
    ],
)
def test_what_is_expected_is_what_is_written(recipe: str, options: list[str], name: str) -> None:
    written = made("cpu")
    config = formats(compose(COMMAND, [f"recipe={recipe}", *options]).recipe)
    apply_quantization_config(written, QuantizationConfig(**config))
    for part, parameter in written.named_parameters():
        if part.endswith("_scale"):
            parameter.data.fill_(0.01)
    compressor = ModelCompressor.from_pretrained_model(written)
    compressor.compress_model(written)
    content = compressor.quantization_config.model_dump(mode="json")
    content |= {"quant_method": "compressed-tensors", "quantization_status": "compressed"}

    model = made("meta")
    schemes = read_schemes({"quantization_config": content}, model, "config.json")
    assert schemes.faults == []
    whole = expect(model, schemes)
    tensors = written.state_dict()
    assert tensors.keys() <= whole.tensors.keys()
    for part, expected in whole.tensors.items():
        if part not in tensors:
            assert not expected.required, part
            continue
        assert tuple(tensors[part].shape) in expected.shapes, part
        assert TYPES[tensors[part].dtype] in expected.dtypes, part
    assert {layer.format.name for layer in whole.linear if layer.name != "lm_head"} == {name}
