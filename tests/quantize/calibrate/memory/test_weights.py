"""The next layer's weights are loaded beforehand, given to compressed-tensors, and given up."""

import gc
import threading
import weakref

import pytest
import torch
from compressed_tensors.offload import (
    disable_offloading,
    disable_onloading,
    offload_module,
    update_offload_parameter,
)
from compressed_tensors.offload.cache import OffloadCache

from quantize.calibrate.memory.weights import LayerWeights, LoadedWeight, Pair, empty_weight


class CloningLoader:
    """Copies on the CPU, into other memory: as a GPU would, for the bookkeeping."""

    def __init__(self) -> None:
        self.copied: list[torch.Tensor] = []
        self.copies: list[weakref.ref[torch.Tensor]] = []
        self.threads: set[int] = set()
        self.most_alive = 0
        self.error: Exception | None = None
        self.is_full = False
        self.may_copy_back = threading.Event()
        self.may_copy_back.set()

    def is_remote(self, cache: OffloadCache, tensor: torch.Tensor) -> bool:
        return True

    def prepared(self, tensors: list[torch.Tensor]) -> list[LoadedWeight]:
        if self.is_full:
            raise torch.OutOfMemoryError
        weights = [empty_weight(tensor, torch.device("cpu")) for tensor in tensors]
        self.copies += [weakref.ref(weight.loaded) for weight in weights]
        alive = sum(copy() is not None for copy in self.copies)
        self.most_alive = max(self.most_alive, alive)
        return weights

    def copy(self, weights: list[LoadedWeight]) -> None:
        self.threads.add(threading.get_ident())
        if self.error:
            raise self.error
        with torch.no_grad():
            for weight in weights:
                weight.loaded.copy_(weight.offloaded)
        self.copied += [weight.offloaded for weight in weights]

    def issued(self) -> object:
        return None

    def copy_back(self, pairs: list[Pair], after: object) -> None:
        self.may_copy_back.wait(timeout=60)
        if self.error:
            raise self.error
        with torch.no_grad():
            for offloaded, loaded in pairs:
                offloaded.copy_(loaded)


def offloaded_layers(count: int) -> list[list[torch.nn.Module]]:
    """Layers of one linear module and its parent, offloaded."""
    layers: list[list[torch.nn.Module]] = []
    for _ in range(count):
        parent = torch.nn.Sequential(torch.nn.Linear(3, 3))
        layers.append(list(parent.modules()))
        for module in parent.modules():
            offload_module(module, "cpu", "cpu")
    return layers


def stored_weight(layer: list[torch.nn.Module]) -> torch.Tensor:
    with disable_onloading():
        weight = layer[1].weight
    assert isinstance(weight, torch.Tensor)
    return weight


def test_a_layer_computes_with_the_weights_loaded_before() -> None:
    layers, loader = offloaded_layers(4), CloningLoader()
    inputs = torch.ones(2, 3)
    with LayerWeights(layers, loader) as weights:
        for number, layer in enumerate(layers):
            with disable_offloading(), weights.of_layer(number):
                is_loaded_copy = layer[1].weight is not stored_weight(layer)
                assert is_loaded_copy == (number > 0)
                assert torch.equal(layer[1].weight, stored_weight(layer))
                expected = torch.nn.functional.linear(inputs, *layer[1].parameters())
                assert torch.equal(layer[0](inputs), expected)
            assert not OffloadCache.keep_onloaded_values
    assert len(loader.copied) == 3 * 2
    assert loader.threads.isdisjoint({threading.get_ident()})
    assert len(loader.threads) == 1


def test_a_change_of_a_layer_reaches_its_copy_and_the_stored_weight() -> None:
    layers, loader = offloaded_layers(2), CloningLoader()
    with LayerWeights(layers, loader) as weights:
        with disable_offloading(), weights.of_layer(0):
            pass
        with disable_offloading(), weights.of_layer(1):
            update_offload_parameter(layers[1][1], "weight", torch.full((3, 3), 7.0))
            assert layers[1][1].weight.eq(7).all()
            assert layers[1][1].weight is not stored_weight(layers[1])
    assert stored_weight(layers[1]).eq(7).all()


def test_a_change_is_copied_back_after_the_layer() -> None:
    layers, loader = offloaded_layers(2), CloningLoader()
    loader.may_copy_back.clear()
    with LayerWeights(layers, loader) as weights:
        with disable_offloading(), weights.of_layer(0):
            loader.may_copy_back.set()
        weights.copied_back.result()
        loader.may_copy_back.clear()
        with disable_offloading(), weights.of_layer(1):
            update_offload_parameter(layers[1][1], "weight", torch.full((3, 3), 7.0))
        assert not stored_weight(layers[1]).eq(7).any()
        loader.may_copy_back.set()
        weights.copied_back.result()
        assert stored_weight(layers[1]).eq(7).all()


def test_a_weight_that_two_layers_share_is_loaded_after_it_was_copied_back() -> None:
    first, second, third = offloaded_layers(3)
    second[1]._parameters.offloaded_values["weight"] = stored_weight(third)
    loader = CloningLoader()
    with LayerWeights([first, second, third], loader) as weights:
        with disable_offloading(), weights.of_layer(0):
            pass
        with disable_offloading(), weights.of_layer(1):
            weights._copying.result()  # type: ignore[union-attr]
            update_offload_parameter(second[1], "weight", torch.full((3, 3), 7.0))
        with disable_offloading(), weights.of_layer(2):
            assert third[1].weight.eq(7).all()


def test_a_copy_back_that_fails_ends_the_run() -> None:
    layers, loader = offloaded_layers(2), CloningLoader()
    with pytest.raises(RuntimeError, match="lost device"), LayerWeights(layers, loader) as weights:  # noqa: PT012
        with disable_offloading(), weights.of_layer(0):
            pass
        with disable_offloading(), weights.of_layer(1):
            loader.error = RuntimeError("lost device")


def test_a_weight_that_changes_after_its_copy_began_is_loaded_anew() -> None:
    layers, loader = offloaded_layers(2), CloningLoader()
    with LayerWeights(layers, loader) as weights:
        with disable_offloading(), weights.of_layer(0):
            update_offload_parameter(layers[1][1], "weight", torch.full((3, 3), 7.0))
        with disable_offloading(), weights.of_layer(1):
            assert layers[1][1].weight.eq(7).all()
            assert layers[1][1].bias is not layers[1][1]._parameters.offloaded_values["bias"]


def test_two_layers_at_most_are_loaded() -> None:
    layers, loader = offloaded_layers(6), CloningLoader()
    with LayerWeights(layers, loader) as weights:
        for number in range(6):
            with disable_offloading(), weights.of_layer(number):
                pass
    assert loader.most_alive == 2 * 2


def test_without_room_weights_are_loaded_when_they_are_used() -> None:
    layers, loader = offloaded_layers(3), CloningLoader()
    loader.is_full = True
    with LayerWeights(layers, loader) as weights:
        for number, layer in enumerate(layers):
            with disable_offloading(), weights.of_layer(number):
                assert torch.equal(layer[1].weight, stored_weight(layer))
    assert not loader.copied


def test_a_failed_copy_is_an_error_of_the_layer_that_needs_it() -> None:
    layers, loader = offloaded_layers(2), CloningLoader()
    loader.error = RuntimeError("lost device")
    with pytest.raises(RuntimeError, match="lost device"), LayerWeights(layers, loader) as weights:  # noqa: PT012
        with disable_offloading(), weights.of_layer(0):
            pass
        with disable_offloading(), weights.of_layer(1):
            pytest.fail("the layer must not begin")
    assert not OffloadCache.keep_onloaded_values


def test_a_run_that_stops_gives_up_what_it_loaded() -> None:
    layers, loader = offloaded_layers(3), CloningLoader()
    stopped = pytest.raises(KeyError)
    with stopped, LayerWeights(layers, loader) as weights, disable_offloading():  # noqa: SIM117
        with weights.of_layer(0):
            raise KeyError
    gc.collect()
    assert all(copy() is None for copy in loader.copies)


def test_modules_that_are_not_offloaded_and_the_excluded_one_are_left_alone() -> None:
    layers, loader = offloaded_layers(2), CloningLoader()
    layers[1].append(torch.nn.Linear(2, 2))
    without_head = [[module for module in layer if module is not layers[1][1]] for layer in layers]
    with LayerWeights(without_head, loader) as weights, disable_offloading():  # noqa: SIM117
        with weights.of_layer(0):
            pass
    assert not loader.copied


def test_without_a_gpu_nothing_happens() -> None:
    layers = offloaded_layers(2)
    with LayerWeights.of(layers, torch.device("cpu"), None) as weights:
        for number, layer in enumerate(layers):
            with disable_offloading(), weights.of_layer(number):
                assert layer[1].weight is stored_weight(layer)
    assert weights._loader is None
