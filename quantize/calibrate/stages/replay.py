"""Runs a decoder layer in parts: blocks that are done return what they returned, and a block that
is read ends the pass."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch

from quantize.calibrate.stages.blocks import BlockModules, first_tensor
from quantize.calibrate.stages.forwards import forward_as, no_product


class _PassEnds(BaseException):
    """Raised where nothing more of a layer is needed. No `Exception`: libraries catch these."""


@contextmanager
def done(block: BlockModules, output: torch.Tensor) -> Iterator[None]:
    """The block returns this output, and the norm before it computes nothing."""
    further = block.further_outputs
    result: Any = output if further is None else (output, *[None] * further)
    with ExitStack() as stack:
        stack.enter_context(forward_as(block.module, lambda *_, **__: result))
        if block.feeder is not None:
            stack.enter_context(forward_as(block.feeder, first_tensor_of_call))
        yield


def first_tensor_of_call(*args: Any, **options: Any) -> torch.Tensor | None:
    return first_tensor(args, options)


def read_entries(block: BlockModules, run_layer: Callable[[], object]) -> None:
    """Runs the layer up to the block, whose entries only have their input read."""

    def read(*args: Any, **options: Any) -> None:
        inputs = first_tensor(args, options)
        for entry in block.entries:
            entry(inputs)
        raise _PassEnds

    with ExitStack() as stack:
        for entry in block.entries:
            stack.enter_context(_without_product(entry))
        stack.enter_context(forward_as(block.module, read))
        stack.enter_context(suppress(_PassEnds))
        run_layer()


def read_exit(block: BlockModules, run_layer: Callable[[], object]) -> torch.Tensor:
    """Runs the layer up to the block's exit, which only has its input read; returns this input."""
    own_forward = block.module.forward
    seen: list[torch.Tensor] = []

    def run_block(*args: Any, **options: Any) -> None:
        own_forward(*args, **options)
        raise _PassEnds

    with ExitStack() as stack:
        stack.enter_context(_without_product(block.exit, seen))
        stack.enter_context(forward_as(block.module, run_block))
        stack.enter_context(suppress(_PassEnds))
        run_layer()
    (inputs,) = seen
    return inputs


@contextmanager
def _without_product(
    module: torch.nn.Module, seen: list[torch.Tensor] | None = None
) -> Iterator[None]:
    assert isinstance(module, torch.nn.Linear)

    def forward(inputs: torch.Tensor) -> torch.Tensor:
        if seen is not None:
            seen.append(inputs)
        return no_product(module, inputs)

    with forward_as(module, forward):
        yield
