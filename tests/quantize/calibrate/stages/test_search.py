"""A layer is calibrated in stages only if it gives the same in parts."""

from typing import Any

import pytest
import torch
from torch.utils.hooks import RemovableHandle

from quantize.calibrate.stages.search import BlockSearch, ModifierHooks
from quantize.models.experts import linear_experts
from tests.quantize.calibrate.stages.test_blocks import model_of


class Modifier:
    """Reads the inputs of modules, as GPTQ does."""

    def __init__(self, modules: list[torch.nn.Module]) -> None:
        self.reads = 0
        self._hooks: set[RemovableHandle] = {
            module.register_forward_hook(self.read) for module in modules
        }

    def read(self, *_: Any) -> None:
        self.reads += 1


def linears(layer: torch.nn.Module) -> list[torch.nn.Module]:
    return [module for module in layer.modules() if isinstance(module, torch.nn.Linear)]


def found(model: Any, layers: list[Any], runs: list[int] | None = None) -> list[int]:
    """The number of blocks of each layer. `runs`: notes every run of a layer."""
    hooks = ModifierHooks([Modifier([each for layer in layers for each in linears(layer)])])
    search = BlockSearch([list(layer.modules()) for layer in layers], hooks)

    def run_layer() -> None:
        if runs is not None:
            runs.append(1)
        model(torch.arange(12).unsqueeze(0))

    return [len(search.blocks([layer], run_layer)) for layer in layers]


@pytest.mark.parametrize("kind", ["qwen3", "gemma2", "phi3"])
def test_a_layer_that_gives_the_same_in_parts(kind: str) -> None:
    model = model_of(kind)
    assert found(model, [model.model.layers[0]]) == [2]


def test_the_layer_is_left_as_it_was() -> None:
    model = model_of("llama")
    layer = model.model.layers[0]
    found(model, [layer])
    for module in layer.modules():
        assert "forward" not in vars(module)
        assert not module._forward_pre_hooks
        assert len(module._forward_hooks) == isinstance(module, torch.nn.Linear)


def test_the_first_layer_of_a_kind_is_tried_for_all() -> None:
    model = model_of("llama")
    layers = [model.model.layers[0]]
    one_layer: list[int] = []
    found(model, layers, one_layer)
    same_kind = model_of("llama").model.layers[0]
    two_layers: list[int] = []
    assert found(model, [*layers, same_kind], two_layers) == [2, 2]
    assert len(two_layers) == len(one_layer) > 0


def test_a_norm_that_is_read_twice_is_found_out() -> None:
    """The layer adds the norm's output, which is not computed while the block is skipped."""
    model = model_of("llama")
    layer = model.model.layers[0]

    def forward(hidden: torch.Tensor, **options: Any) -> torch.Tensor:
        normed = layer.input_layernorm(hidden)
        hidden = normed + layer.self_attn(hidden_states=normed, **options)[0]
        output: torch.Tensor = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return output

    layer.forward = forward
    assert found(model, [layer]) == [0]


def test_shared_modules_and_observers_of_the_cache_are_calibrated_as_a_whole() -> None:
    model = model_of("llama")
    layer = model.model.layers[0]
    hooks = ModifierHooks([Modifier(linears(layer))])
    search = BlockSearch([list(layer.modules())] * 2, hooks)
    assert search.blocks([layer], lambda: model(torch.arange(12).unsqueeze(0))) == []
    layer.self_attn.k_observer = torch.nn.Identity()
    assert found(model, [layer]) == [0]


def test_a_mixture_of_experts_is_calibrated_as_a_whole_without_a_trial() -> None:
    with linear_experts("qwen3_moe"):
        model = model_of("qwen3_moe", num_experts=2, moe_intermediate_size=32)
    runs: list[int] = []
    assert found(model, [model.model.layers[0]], runs) == [0]
    assert not runs
