"""VPTQ's config, as its own tool writes it, and the tensors that it describes."""

from typing import Any

import pytest

from conf.errors import QuantlineError
from conf.formats.base.stored_format import Machine
from conf.formats.quant_args import Codebooks, QuantArgs, vector_args
from conf.formats.quantization_config import read_quantization
from conf.formats.registry import format_of, format_of_config
from conf.formats.served import refusal, support
from conf.formats.vptq import FORMAT, layer_entry, read_fields
from evaluate.measure.roofline import cost
from serve.tensors import Tensor

NAME = "model.layers.{}.mlp.down_proj"
# As in a published checkpoint of 3 bits.
LAYER: dict[str, Any] = {
    "bias": False,
    "enable_norm": True,
    "enable_perm": True,
    "group_num": 1,
    "group_size": 4096,
    "in_features": 4096,
    "indices_as_float": False,
    "is_indice_packed": True,
    "num_centroids": [-1, 65536],
    "num_res_centroids": [-1, 256],
    "out_features": 14336,
    "outlier_size": 0,
    "vector_lens": [-1, 8],
    "vector_quant_dim": "out",
}
CONFIG: dict[str, Any] = {
    "quant_method": "vptq",
    "config_for_layers": {NAME.format(layer): LAYER for layer in range(2)},
}
ARCHITECTURE = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 2,
}


def changed(**fields: object) -> dict[str, Any]:
    """The config with other fields in its first layer."""
    layers = CONFIG["config_for_layers"] | {NAME.format(0): LAYER | fields}
    return CONFIG | {"config_for_layers": layers}


def test_layers_with_the_same_codebooks_are_one_group() -> None:
    config = read_quantization(CONFIG, "config.json")
    assert config is not None
    assert format_of_config(config) is FORMAT
    (group,) = config.groups
    assert format_of(group) is FORMAT
    assert group.targets == [NAME.format(0), NAME.format(1)]
    assert group.weights is not None
    assert group.weights.codebooks == Codebooks(8, 65536, 256, has_order=True)
    assert FORMAT.bits(group.weights) == 3
    assert "vectors of 8 in codebooks of 65,536 and 256" in FORMAT.describe(group.weights)


def test_layers_with_other_codebooks_are_another_group() -> None:
    config = read_quantization(changed(num_res_centroids=[-1, -1]), "config.json")
    assert config is not None
    books = [group.weights.codebooks for group in config.groups if group.weights]
    assert [entry.residual_entries for entry in books if entry] == [0, 256]


def test_entries_for_all_modules_of_a_name() -> None:
    content = {"quant_method": "vptq", "shared_layer_config": {"down_proj": LAYER}}
    config = read_quantization(content, "config.json")
    assert config is not None
    assert config.groups[0].targets == [r"re:.*\.down_proj$"]


def test_the_tensors_of_a_layer() -> None:
    config = read_quantization(CONFIG, "config.json")
    assert config is not None
    tensors = FORMAT.tensors(config.groups[0], 14336, 4096)
    assert {name: tensor.shapes[0] for name, tensor in tensors.items()} == {
        "indices": (1, 1792, 4096 * 24 // 32),
        "centroids.weight": (1, 65536 * 8),
        "res_centroids.weight": (1, 256 * 8),
        "weight_scale": (4096,),
        "weight_bias": (4096,),
        "perm": (4096,),
    }


def test_outlier_columns_have_tensors_of_their_own() -> None:
    fields = {"num_centroids": [4096, 256], "vector_lens": [4, 8], "outlier_size": 32}
    config = read_quantization(changed(**fields, group_size=4064), "config.json")
    assert config is not None
    tensors = FORMAT.tensors(config.groups[0], 14338, 4096)
    assert tensors["indices"].shapes == ((1, 1793, 4064 * 16 // 32),)
    assert tensors["outlier_centroids.weight"].shapes == ((1, 4096 * 4),)
    assert tensors["outlier_indices"].shapes == ((1, 3585, 32),)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"is_indice_packed": False}, "is_indice_packed"),
        ({"indices_as_float": True}, "indices_as_float"),
        ({"vector_quant_dim": "in"}, "vector_quant_dim"),
        ({"vector_lens": [8]}, "vector_lens"),
        ({"num_centroids": [-1, 1 << 20]}, "num_centroids"),
    ],
)
def test_variants_that_nothing_reads_are_refused(fields: dict[str, object], reason: str) -> None:
    with pytest.raises(QuantlineError, match=reason):
        read_quantization(changed(**fields), "config.json")


@pytest.mark.parametrize(
    ("codebooks", "reason"),
    [
        (Codebooks(8, 4096, 4096), None),
        (Codebooks(8, 65536), None),
        (Codebooks(8, 1000), "power of two"),
        (Codebooks(8, 256, 3), "power of two"),
        (Codebooks(1, 256), "at least 2 weights"),
        (Codebooks(8, 256, outlier_columns=4, outlier_vector_length=4), "codebook of their own"),
    ],
)
def test_codebooks_that_a_recipe_may_ask_for(codebooks: Codebooks, reason: str | None) -> None:
    refused = refusal(vector_args(codebooks), None)
    assert (refused is None) == (reason is None)
    if reason is not None:
        assert refused is not None
        assert reason in refused.reason


def test_activations_stay_at_16_bits() -> None:
    refused = refusal(vector_args(Codebooks(8, 256)), QuantArgs("int", 8, "token"))
    assert refused is not None
    assert refused.part == "activations"


@pytest.mark.parametrize(
    ("capability", "summary", "is_slow"),
    [
        (9.0, "Quantline's VPTQ product", False),
        (8.0, "Quantline's VPTQ product", False),
        (7.5, "plain PyTorch", True),
        (None, "plain PyTorch", True),
    ],
)
def test_our_plugin_runs_it_in_vllm(capability: float | None, summary: str, is_slow: bool) -> None:
    config = read_quantization(CONFIG, "config.json")
    answer = support(config, Machine(capability, "x86_64"))
    assert answer.runs
    assert summary in answer.summary
    assert bool(answer.instead) is is_slow
    assert not support(config, Machine(7.0, "x86_64")).runs, "vLLM itself does not run there"


def test_an_entry_that_we_write_is_read_back() -> None:
    books = Codebooks(8, 256, 64, 1, 4, 4, 128, has_order=True)
    content = {"config_for_layers": {"a": layer_entry(books, 64, 36, has_bias=False)}}
    layer = read_fields(content).config_for_layers["a"]
    assert layer.codebooks == books
    assert (layer.group_size, layer.in_features, layer.out_features) == (32, 36, 64)


def test_the_limit_counts_weights_and_reads_numbers_and_codebooks() -> None:
    prefix = NAME.format(0)
    tensors = {
        f"{prefix}.indices": Tensor("I32", (1, 1792, 3072)),
        f"{prefix}.centroids.weight": Tensor("BF16", (1, 65536 * 8)),
        f"{prefix}.res_centroids.weight": Tensor("BF16", (1, 256 * 8)),
        f"{prefix}.weight_scale": Tensor("BF16", (4096,)),
    }
    work = cost(tensors, ARCHITECTURE | {"quantization_config": CONFIG}, dtype_bytes=2)
    assert work is not None
    assert work.body_weights == 14336 * 4096
    assert work.body_bytes == sum(tensor.bytes for tensor in tensors.values())
    assert work.product == "bf16"
