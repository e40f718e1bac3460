"""Activations between layers: partly on the device, partly on the host, and always the same."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from quantize.calibrate.memory import activations as module
from quantize.calibrate.memory.activations import Activations, OnHost
from quantize.calibrate.memory.copies import CopyStream

CPU = torch.device("cpu")
WIDTH, BATCHES = 6, 5
BATCH_BYTES = 2 * 3 * WIDTH * 4


class EarlyCopies:
    """Copies at once: as early as a GPU may copy."""

    def __init__(self) -> None:
        self.started = 0

    def start(self, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self.started += 1
        for target, source in pairs:
            target.copy_(source)

    def join(self) -> None:
        pass


class LateCopies:
    """Copies when joined: as late as a GPU may copy. Until then the target holds NaN or zeros."""

    def __init__(self) -> None:
        self.started = 0
        self._under_way: list[tuple[torch.Tensor, torch.Tensor]] = []

    def start(self, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self.join()
        self.started += 1
        self._under_way = pairs
        for target, _ in pairs:
            target.fill_(math.nan if target.is_floating_point() else 0)

    def join(self) -> None:
        for target, source in self._under_way:
            target.copy_(source)
        self._under_way = []


@dataclass
class Pair:
    """A value that a layer hands on beside its tensors."""

    first: torch.Tensor
    label: str


def values(batch: int) -> dict[str, Any]:
    hidden = torch.full((2, 3, WIDTH), float(batch))
    return {"hidden": hidden, "unused": [hidden + 1], "number": batch}


def filled(gpu_bytes: float, to_host: CopyStream, to_device: CopyStream) -> Activations:
    activations = Activations(CPU, gpu_bytes, to_host, to_device)
    for batch in range(BATCHES):
        activations.append(values(batch))
    return activations


def after_layers(activations: Activations, layers: int) -> list[torch.Tensor]:
    """Passes all batches through layers, two passes a layer, as calibrating does."""
    for layer in range(layers):
        seen = [inputs["hidden"].sum() for inputs in activations.iter(["hidden"])]
        for batch, inputs in enumerate(activations.iter({"hidden", "number"})):
            assert inputs["number"] == batch
            assert inputs["hidden"].sum() == seen[batch]
            outputs = inputs["hidden"] * 3 + layer + torch.arange(WIDTH)
            activations.update(batch, {"hidden": outputs})
            activations.delete(batch, ["unused"] if layer == 0 else [])
    return [inputs["hidden"] for inputs in activations.iter(["hidden"])]


@pytest.fixture
def buffers(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The host buffers that were allocated."""
    allocated: list[torch.Tensor] = []

    def host_buffer(tensor: torch.Tensor) -> torch.Tensor:
        allocated.append(torch.full_like(tensor, math.nan))
        return allocated[-1]

    monkeypatch.setattr(module, "host_buffer", host_buffer)
    return allocated


@pytest.mark.parametrize("copies", [EarlyCopies, LateCopies])
@pytest.mark.parametrize("on_gpu", [0, 1, 3, BATCHES])
def test_every_placement_gives_the_same_values(
    copies: Any, on_gpu: int, buffers: list[torch.Tensor]
) -> None:
    plain = after_layers(filled(math.inf, EarlyCopies(), EarlyCopies()), layers=4)
    assert not buffers
    to_host, to_device = copies(), copies()
    mixed = filled((2 * on_gpu + 0.5) * BATCH_BYTES, to_host, to_device)
    assert mixed.gpu_bytes_used == 2 * on_gpu * BATCH_BYTES  # hidden and unused
    assert to_host.started == BATCHES - on_gpu
    for expected, got in zip(plain, after_layers(mixed, layers=4), strict=True):
        assert torch.equal(expected, got)
    assert (to_device.started > 0) == (on_gpu < BATCHES)


def test_the_budget_holds_while_a_batch_is_replaced() -> None:
    """The output of a batch is stored before its input is removed."""
    budget = 3 * BATCH_BYTES
    activations = Activations(CPU, budget, LateCopies(), LateCopies())
    for batch in range(BATCHES):
        activations.append({"x0": values(batch)["hidden"]})
    assert activations.gpu_bytes_used == budget
    for layer in range(3):
        for batch, inputs in enumerate(activations.iter([f"x{layer}"])):
            activations.update(batch, {f"x{layer + 1}": inputs[f"x{layer}"] + 1})
            assert activations.gpu_bytes_used <= budget
            activations.delete(batch, [f"x{layer}"])
        assert activations.gpu_bytes_used >= budget - BATCH_BYTES
    for batch, inputs in enumerate(activations.iter(["x3"])):
        assert inputs["x3"].eq(batch + 3).all()


def test_host_buffers_are_used_again(buffers: list[torch.Tensor]) -> None:
    activations = filled(0, LateCopies(), LateCopies())
    after_layers(activations, layers=1)
    allocated = len(buffers)
    after_layers(activations, layers=5)
    assert len(buffers) == allocated <= 2 * BATCHES + 1


def test_a_view_with_repeated_rows_is_kept_and_its_buffer_used_again(
    buffers: list[torch.Tensor],
) -> None:
    activations = Activations(CPU, 0, LateCopies(), LateCopies())
    activations.append({})
    for number in range(4):
        activations.update(0, {"mask": torch.tensor([[float(number)]]).expand(3, 3)})
        (inputs,) = activations.iter(["mask"])
        assert inputs["mask"].eq(number).all()
    assert len(buffers) == 1


def test_nested_values_go_to_the_host_and_come_back() -> None:
    tensor = torch.arange(4.0)
    nested = {"a": (tensor, [tensor + 1]), "b": {"c": Pair(tensor + 2, "label")}, "d": None}
    activations = Activations(CPU, 0, LateCopies(), LateCopies())
    activations.append(nested)
    assert isinstance(activations._batches[0]["a"][0], OnHost)
    (back,) = activations.iter(nested)
    assert torch.equal(back["a"][0], tensor)
    assert torch.equal(back["a"][1][0], tensor + 1)
    assert torch.equal(back["b"]["c"].first, tensor + 2)
    assert back["b"]["c"].label == "label"
    assert back["d"] is None


def test_a_view_counts_with_all_that_it_holds() -> None:
    activations = Activations(CPU, math.inf, EarlyCopies(), EarlyCopies())
    whole = torch.zeros(100)
    activations.append({"view": whole[:1], "another": (whole[1:2], whole[2:3])})
    assert activations.gpu_bytes_used == 2 * whole.nbytes


def test_without_a_gpu_nothing_is_copied() -> None:
    batch = values(1)
    activations = Activations.of([batch], CPU, gpu_bytes=0)
    (inputs,) = activations.iter(["hidden"])
    assert inputs["hidden"] is batch["hidden"]


def test_leaving_a_pass_ends_its_copies() -> None:
    to_device = LateCopies()
    activations = filled(0, LateCopies(), to_device)
    batches = activations.iter(["hidden"])
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert not to_device._under_way
