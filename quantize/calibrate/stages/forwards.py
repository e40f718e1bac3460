"""Replaces what a module computes, for a while."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch


@contextlib.contextmanager
def forward_as(module: torch.nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """The module computes `forward`. Its hooks run as before."""
    own = vars(module).get("forward")  # that of an offloaded module is not its class's
    module.forward = forward
    try:
        yield
    finally:
        if own is None:
            del module.forward
        else:
            module.forward = own


def no_product(module: torch.nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
    """Stands for a linear layer's output where only its input is read. It takes no memory."""
    return inputs.new_zeros(()).expand(*inputs.shape[:-1], module.out_features)
