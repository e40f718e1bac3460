"""In stages, each module sees the inputs that the changed modules before it give, and every product
is computed once."""

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from llmcompressor.modifiers.utils.hooks import HooksMixin

from quantize.calibrate.memory import activations as memory
from quantize.calibrate.memory.activations import Activations
from quantize.calibrate.memory.copies import NoCopies
from quantize.calibrate.stages.layer import StagedLayer
from quantize.calibrate.stages.search import BlockSearch, ModifierHooks
from tests.quantize.calibrate.memory.test_activations import LateCopies
from tests.quantize.calibrate.stages.test_blocks import model_of

BATCHES, TOKENS = 3, 12
CPU = torch.device("cpu")
Inputs = dict[str, list[torch.Tensor]]


class Reader(HooksMixin):
    """Notes the inputs of all linear layers."""

    def watch(self, layer: torch.nn.Module) -> Inputs:
        seen: Inputs = {}
        for name, module in layer.named_modules():
            if isinstance(module, torch.nn.Linear):
                notes = seen.setdefault(name, [])
                self.register_hook(
                    module, lambda _, args, __, to=notes: to.append(args[0]), "forward"
                )
        return seen


class Case:
    """A layer with its batches, and its products by module."""

    def __init__(self, kept: Activations) -> None:
        model = model_of("llama")
        self.layer, rotary = model.model.layers[0], model.model.rotary_emb
        generator = torch.Generator().manual_seed(1)
        self.batches = [torch.randn(2, TOKENS, 64, generator=generator) for _ in range(BATCHES)]
        self.positions = rotary(self.batches[0], torch.arange(TOKENS)[None])
        self.activations = kept
        for batch in self.batches:
            kept.append({"hidden": batch, "unused": 1})
        self.reader = Reader()
        self.seen = self.reader.watch(self.layer)
        self.products: Counter[str] = Counter()

    def forward(self, hidden: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"out": self.layer(hidden, position_embeddings=self.positions)}

    def count_products(self) -> None:
        for name, module in self.layer.named_modules():
            if isinstance(module, torch.nn.Linear):

                def forward(
                    inputs: torch.Tensor, name: str = name, module: Any = module
                ) -> torch.Tensor:
                    self.products[name] += 1
                    return torch.nn.functional.linear(inputs, module.weight)

                module.forward = forward  # type: ignore[method-assign]

    def staged(self) -> StagedLayer:
        hooks = ModifierHooks([self.reader])
        search = BlockSearch([list(self.layer.modules())], hooks)
        blocks = search.blocks([self.layer], lambda: self.forward(self.batches[0]))
        assert len(blocks) == 2
        self.count_products()
        return StagedLayer(blocks, self.forward, ["hidden"], self.activations, hooks)


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def change(modules: Any) -> None:
    """As a step that rounds coarsely."""
    for module in modules:
        module.weight.copy_((module.weight * 16).round() / 16)


def calibrated(case: Case) -> list[torch.Tensor]:
    staged = case.staged()
    staged.calibrate(change)
    return [values["out"] for _, values in staged.outputs()]


def on_host(gpu_bytes: float) -> Activations:
    return Activations(CPU, gpu_bytes, LateCopies(), LateCopies())


@pytest.mark.parametrize("room", [True, False])
def test_modules_see_what_the_changed_ones_before_them_give(
    room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Activations, "has_room", lambda *_: room)
    case = Case(Activations(CPU, math.inf, NoCopies(), NoCopies()))
    outputs = calibrated(case)
    times = 1 if room else 2
    expected = dict.fromkeys(case.seen, BATCHES)
    expected |= {"mlp.gate_proj": times * BATCHES, "mlp.up_proj": times * BATCHES}
    assert case.products == expected

    changed = Case(Activations(CPU, math.inf, NoCopies(), NoCopies()))
    change([module for module in changed.layer.modules() if isinstance(module, torch.nn.Linear)])
    right = [changed.forward(batch)["out"] for batch in changed.batches]
    assert all(map(torch.equal, outputs, right))
    assert case.seen.keys() == changed.seen.keys()
    for name, inputs in case.seen.items():
        assert len(inputs) == BATCHES
        assert all(map(torch.equal, inputs, changed.seen[name])), name


@pytest.mark.parametrize("batches_on_gpu", [0, 1, 4, 8])
def test_where_values_are_kept_changes_none(batches_on_gpu: int) -> None:
    one = 2 * TOKENS * 64 * 4
    right = calibrated(Case(Activations(CPU, math.inf, NoCopies(), NoCopies())))
    case = Case(on_host(batches_on_gpu * one))
    assert all(map(torch.equal, calibrated(case), right))


def test_nothing_is_kept_when_the_outputs_are_there() -> None:
    case = Case(on_host(1e9))
    before = case.activations.gpu_bytes_used
    calibrated(case)
    assert case.activations.gpu_bytes_used == before
    assert [sorted(values) for values in case.activations._batches] == [["hidden", "unused"]] * 3


def test_the_widest_value_is_kept_only_where_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    value = torch.zeros(10)
    assert on_host(40).has_room(value)
    assert not on_host(39).has_room(value)

    class Memory:
        available, total = 6, 10

    monkeypatch.setattr(memory.psutil, "virtual_memory", Memory)
    without_gpu = Activations(CPU, math.inf, NoCopies(), NoCopies())
    assert without_gpu.has_room(value)
    Memory.available = 4
    assert not without_gpu.has_room(value)
