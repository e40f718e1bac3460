"""Layers in codebooks in vLLM: what is loaded into which part, on which rank; what is refused."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

pytest.importorskip("vllm")

from conf.formats.quant_args import Codebooks
from conf.formats.vptq import ConfigFields, LayerFields, layer_entry, read_fields
from quantize.vptq.layer import VectorLayer
from serve.kernels import record
from serve.kernels.record import LayerKernels
from serve.kernels.vptq.config import VptqConfig
from serve.kernels.vptq.method import NamedLayer, VptqLinearMethod
from tests.serve.kernels.vptq.made import BOOKS, OUTLIERS, PLAIN, activations, error, stored_layer

COLUMNS, SHARDS = 64, ("q", "k", "v")


class Linear(torch.nn.Module):  # type: ignore[misc]
    """What a layer of vLLM tells its method."""

    def __init__(self, rank: int = 0, copies: int = 1) -> None:
        super().__init__()
        self.tp_rank, self.num_kv_head_replicas = rank, copies


def fields_of(layer: VectorLayer) -> LayerFields:
    entry = layer_entry(layer.codebooks, layer.rows, layer.columns, has_bias=False)
    return read_fields({"config_for_layers": {"a": entry}}).config_for_layers["a"]


def load(method: VptqLinearMethod, module: Linear, layers: Sequence[VectorLayer]) -> None:
    """As vLLM does: parameters by the names of the checkpoint, parts by their shards."""
    parameters: dict[str, Any] = dict(module.named_parameters())
    for shard, layer in zip(SHARDS, layers, strict=False):
        for suffix, tensor in layer.tensors.items():
            parameter = parameters[suffix]
            arguments = (shard,) if len(layers) > 1 else ()
            parameter.weight_loader(parameter, tensor, *arguments)
    method.process_weights_after_loading(module)


def made(
    layers: Sequence[VectorLayer],
    rank: int = 0,
    ranks: int = 1,
    splits_inputs: bool = False,
    copies: int = 1,
) -> tuple[VptqLinearMethod, Linear]:
    """The method and the module of merged layers on one rank. `copies`: ranks that have the same
    keys and values."""
    named = [NamedLayer(f"model.{shard}_proj", fields_of(layer))
             for shard, layer in zip(SHARDS, layers, strict=False)]  # fmt: skip
    method, module = VptqLinearMethod("model.qkv_proj", named), Linear(rank, copies)
    rows = [layer.rows for layer in layers]
    if not splits_inputs:
        rows = [size * (copies if place else 1) // ranks for place, size in enumerate(rows)]
    total = sum(rows) * (1 if splits_inputs else ranks)
    columns = COLUMNS // ranks if splits_inputs else COLUMNS
    method.create_weights(module, columns, rows, COLUMNS, total, torch.float32)
    return method, module


@pytest.mark.parametrize("books", BOOKS, ids=str)
def test_merged_parts_keep_codebooks_of_their_own(books: Codebooks) -> None:
    """The parts differ in size, so that a tensor in a wrong place would be found."""
    layers = [stored_layer(books, 48, COLUMNS), stored_layer(PLAIN, 16, COLUMNS, seed=1),
              stored_layer(OUTLIERS, 16, COLUMNS, seed=2)]  # fmt: skip
    method, module = made(layers)
    load(method, module, layers)
    x = activations(3, COLUMNS, torch.float32)
    bias = torch.arange(80.0)
    right = torch.cat([x @ layer.dequantize().t() for layer in layers], dim=1) + bias
    assert error(method.apply(module, x, bias), right) < 1e-6
    assert method.apply(module, x.view(3, 1, COLUMNS)).shape == (3, 1, 80)
    assert all(not p.numel() for n, p in module.named_parameters() if "quantline" not in n)
    before = method.key
    method.process_weights_after_loading(module)
    assert method.key == before


def test_memory_beyond_the_checkpoint_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU has 16 bits for each of the two numbers of a vector; the file has 8 and 6."""
    noted: list[LayerKernels] = []
    monkeypatch.setattr(record, "note", lambda kernels, layer: noted.append(kernels))
    layer = stored_layer(PLAIN, 40, COLUMNS)
    method, module = made([layer])
    load(method, module, [layer])
    vectors = 40 // 8 * COLUMNS
    assert [kernels.extra_bytes for kernels in noted] == [vectors * (32 - 14) // 8]


@pytest.mark.parametrize("books", BOOKS, ids=str)
def test_outputs_are_split_by_whole_vectors(books: Codebooks) -> None:
    """Two ranks share q; both have the same k and v, as with fewer heads than ranks."""
    layers = [stored_layer(books, size, COLUMNS, seed=size) for size in (32, 16, 24)]
    x = activations(3, COLUMNS, torch.float32)
    q, k, v = (x @ layer.dequantize().t() for layer in layers)
    for rank in range(2):
        method, module = made(layers, rank, ranks=2, copies=2)
        load(method, module, layers)
        right = torch.cat([q[:, rank * 16 : (rank + 1) * 16], k, v], dim=1)
        assert error(method.apply(module, x), right) < 1e-6


@pytest.mark.parametrize("books", BOOKS, ids=str)
def test_inputs_are_split_in_their_order(books: Codebooks) -> None:
    layer = stored_layer(books, 20, COLUMNS)
    x, total = activations(3, COLUMNS, torch.float32), torch.zeros(3, 20)
    for rank in range(2):
        method, module = made([layer], rank, ranks=2, splits_inputs=True)
        load(method, module, [layer])
        total += method.apply(module, x[:, rank * 32 : (rank + 1) * 32])
    assert error(total, x @ layer.dequantize().t()) < 1e-6


def test_what_does_not_fit_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"model\.q_proj: 40 outputs on 2 GPUs cut across vectors"):
        made([stored_layer(PLAIN, 40, COLUMNS)] * 3, ranks=2)
    with pytest.raises(ValueError, match=r"model\.q_proj: in_features is 32, not 64"):
        made([stored_layer(PLAIN, 40, 32)])
    layer = stored_layer(PLAIN, 40, COLUMNS)
    method = VptqLinearMethod("model.qkv_proj", [NamedLayer("model.qkv_proj", fields_of(layer))])
    with pytest.raises(ValueError, match="use tensor_parallel_size=1"):
        method.create_weights(Linear(), COLUMNS, [8, 6, 6], COLUMNS, 40, torch.float32)
    method.create_weights(Linear(), COLUMNS, [24, 8, 8], COLUMNS, 40, torch.float32)
    assert method.stored is not None
    assert [part.rows for part in method.stored.parts] == [40], "merged in the checkpoint, too"


def test_tensors_that_are_missing_or_of_another_size_are_named() -> None:
    layer = stored_layer(PLAIN, 40, COLUMNS)
    method, module = made([layer])
    parameters: dict[str, Any] = dict(module.named_parameters())
    indices = parameters["indices"]
    with pytest.raises(
        ValueError, match=r"q_proj\.indices: has the shape \(1, 4, 28\), not \(1, 5"
    ):
        indices.weight_loader(indices, layer.tensors["indices"][:, :4])
    with pytest.raises(ValueError, match="there is no part 'k' of this layer"):
        indices.weight_loader(indices, layer.tensors["indices"], "k")
    indices.weight_loader(indices, layer.tensors["indices"])
    with pytest.raises(
        ValueError, match=r"model\.q_proj\.centroids\.weight: the checkpoint has no"
    ):
        method.process_weights_after_loading(module)


@pytest.mark.parametrize("kind", [torch.uint16, torch.int64])
def test_unsigned_numbers_are_read_in_any_type(kind: torch.dtype) -> None:
    columns = 40000
    books = Codebooks(8, 16, has_order=True)
    layer = stored_layer(books, 8, columns)
    order = layer.order()
    wide = {**layer.tensors, "perm": order.to(kind)}
    assert int(order.max()) > 1 << 15
    named = [NamedLayer("a", fields_of(layer))]
    method, module = VptqLinearMethod("a", named), Linear()
    method.create_weights(module, columns, [8], columns, 8, torch.float32)
    load(method, module, [VectorLayer(books, 8, columns, wide)])
    x = activations(1, columns, torch.float32)
    assert error(method.apply(module, x), x @ layer.dequantize().t()) < 1e-5


class Mapper:
    """In place of vLLM's: other names of modules."""

    def apply_dict(self, values: dict[str, Any]) -> dict[str, Any]:
        return {f"language_model.{name}": value for name, value in values.items()}


def config_of(*names: str) -> VptqConfig:
    entry = layer_entry(PLAIN, 40, COLUMNS, has_bias=False)
    config = VptqConfig.from_config(
        {"quant_method": "vptq", "config_for_layers": dict.fromkeys(names, entry)}
    )
    config.packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
    return config


class TestConfig:
    @pytest.fixture(autouse=True)
    def _linear(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from vllm.model_executor.layers import linear

        monkeypatch.setattr(linear, "LinearBase", Linear)
        monkeypatch.setattr(linear, "UnquantizedLinearMethod", lambda: "plain")

    def test_merged_layers_are_found_by_the_names_of_their_parts(self) -> None:
        config = config_of("m.q_proj", "m.k_proj", "m.v_proj", "m.o_proj")
        method = config.get_quant_method(Linear(), "m.qkv_proj")
        assert [one.name for one in method.named] == ["m.q_proj", "m.k_proj", "m.v_proj"]
        assert config.get_quant_method(Linear(), "m.o_proj").prefix == "m.o_proj"

    def test_layers_without_codebooks_stay_as_they_are(self) -> None:
        config = config_of("m.q_proj", "m.k_proj")
        assert config.get_quant_method(Linear(), "m.down_proj") == "plain"
        assert config.get_quant_method(torch.nn.Module(), "lm_head") is None
        assert config.get_quant_method(torch.nn.Module(), "m") is None, "attention"
        with pytest.raises(ValueError, match=r"m\.v_proj: is not in codebooks, unlike other parts"):
            config.get_quant_method(Linear(), "m.qkv_proj")

    @pytest.mark.parametrize("name", ["lm_head", "m.experts.0.w1"])
    def test_heads_and_experts_in_codebooks_are_refused(self, name: str) -> None:
        config = config_of(name)
        with pytest.raises(ValueError, match=f"{name}: is in codebooks"):
            config.get_quant_method(torch.nn.Module(), name.removesuffix(".0.w1"))

    def test_names_follow_those_of_the_model_in_vllm(self) -> None:
        config = config_of("m.o_proj")
        config.apply_vllm_mapper(Mapper())
        assert config.fields_of("language_model.m.o_proj") is not None
        assert config.fields_of("m.o_proj") is None

    def test_shared_entries_are_found_by_the_last_part_of_a_name(self) -> None:
        fields = fields_of(stored_layer(PLAIN, 40, COLUMNS))
        own = fields.model_copy(update={"num_centroids": [-1, 16]})
        config = VptqConfig(
            ConfigFields(
                config_for_layers={"m.1.o_proj": own}, shared_layer_config={"o_proj": fields}
            )
        )
        assert config.fields_of("m.0.o_proj") == fields
        assert config.fields_of("m.1.o_proj") == own

    def test_a_config_without_layers_is_refused(self) -> None:
        with pytest.raises(ValueError, match="names no layer"):
            VptqConfig.from_config({"quant_method": "vptq"})
