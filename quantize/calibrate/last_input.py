"""Ends a calibrating pass at the last input that a hook reads."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from quantize.calibrate.stages.forwards import forward_as

OBSERVERS = ("q_observer", "k_observer", "v_observer", "output_observer")
"""Of what is computed inside or behind a linear layer."""


class LastInput:
    """The linear layer whose input is the last that hooks read. Its output is not computed from the
    second batch on."""

    def __init__(self, modules: Iterable[torch.nn.Module]) -> None:
        modules = list(modules)
        has_observers = any(hasattr(module, name) for module in modules for name in OBSERVERS)
        self._hooked = [] if has_observers else [m for m in modules if m._forward_hooks]
        self._last: torch.nn.Module | None = None
        self._is_known = False

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """One batch's pass through the layer. The first one shows which module is the last."""
        with contextlib.ExitStack() as stack:
            if not self._is_known:
                for module in self._hooked:
                    stack.callback(self._watch(module).remove)
                self._is_known = True
            elif isinstance(self._last, torch.nn.Linear):
                stack.enter_context(forward_as(self._last, self._nothing))
            yield

    def _watch(self, module: torch.nn.Module) -> Any:
        """A linear layer is done when its input is read, any other module when it has run."""
        if isinstance(module, torch.nn.Linear):
            return module.register_forward_pre_hook(self._note)
        return module.register_forward_hook(self._note)

    def _note(self, module: torch.nn.Module, *_: Any) -> None:
        self._last = module

    def _nothing(self, inputs: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        assert isinstance(self._last, torch.nn.Linear)
        return inputs.new_zeros(*inputs.shape[:-1], self._last.out_features)
