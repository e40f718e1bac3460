"""The blocks of a decoder layer, found by watching one forward pass of it.

A block is a part of the layer, such as attention or an MLP. Its entries are the linear layers that
read the block's own input (q, k, v; gate, up). Its exit is the one whose output is the block's (o;
down). A layer whose modules are used in any other way has no blocks.
"""

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

Modules = tuple[torch.nn.Module, ...]


@dataclass(frozen=True)
class Block:
    """The names of a block's modules within the layer."""

    name: str
    entries: tuple[str, ...]
    exit: str
    feeder: str | None
    """The module of the layer, a norm, whose output is the block's input."""
    further_outputs: int | None
    """How many values the block returns behind its output; none: the output alone."""

    def in_layer(self, layer: torch.nn.Module) -> "BlockModules":
        exit_module = layer.get_submodule(self.exit)
        assert isinstance(exit_module, torch.nn.Linear)
        return BlockModules(
            layer.get_submodule(self.name),
            tuple(layer.get_submodule(name) for name in self.entries),
            exit_module,
            None if self.feeder is None else layer.get_submodule(self.feeder),
            self.further_outputs,
        )


@dataclass(frozen=True, eq=False)
class BlockModules:
    """A block's modules in one layer."""

    module: torch.nn.Module
    entries: Modules
    exit: torch.nn.Linear
    feeder: torch.nn.Module | None
    further_outputs: int | None

    @property
    def before_entries(self) -> Modules:
        """The modules whose hooks read what the block's entries read."""
        return self.entries if self.feeder is None else (self.feeder, *self.entries)


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a module, with its first tensor and its output."""

    module: torch.nn.Module
    inputs: torch.Tensor | None
    output: Any

    @property
    def result(self) -> Any:
        """The output, or the first of several."""
        return self.output[0] if isinstance(self.output, tuple) else self.output


def first_tensor(args: tuple[Any, ...], options: dict[str, Any]) -> torch.Tensor | None:
    """What a module of a decoder layer works on: the first tensor that it is called with."""
    values = (*args, *options.values())
    return next((value for value in values if isinstance(value, torch.Tensor)), None)


@contextmanager
def recorded_calls(layer: torch.nn.Module) -> Iterator[list[Call]]:
    """The calls of the layer's modules, in the order in which they return."""
    calls: list[Call] = []

    def note(
        module: torch.nn.Module, args: tuple[Any, ...], options: dict[str, Any], output: Any
    ) -> None:
        calls.append(Call(module, first_tensor(args, options), output))

    with ExitStack() as stack:
        for module in layer.modules():
            stack.callback(module.register_forward_hook(note, with_kwargs=True).remove)
        yield calls


def blocks_of(
    layer: torch.nn.Module, calls: list[Call], hooked: Collection[torch.nn.Module]
) -> list[Block]:
    """The blocks in the order of their calls; empty where a hooked module is none of their entries,
    exits or feeders. `hooked`: the modules whose inputs or outputs are read."""
    finder = _Finder(layer, calls, hooked)
    parts = [call.module for call in calls if finder.is_part(call.module)]
    blocks = [finder.block(part) for part in parts]
    if None in blocks or len(set(parts)) != len(parts):
        return []
    known = [block for block in blocks if block is not None]
    names = [name for block in known for name in (*block.entries, block.exit, block.feeder) if name]
    is_covered = set(hooked) <= {layer.get_submodule(name) for name in names}
    return known if is_covered and len(set(names)) == len(names) else []


class _Finder:
    def __init__(
        self, layer: torch.nn.Module, calls: list[Call], hooked: Collection[torch.nn.Module]
    ) -> None:
        self._layer, self._calls, self._hooked = layer, calls, hooked
        self._names: dict[torch.nn.Module, str] = {
            module: name for name, module in layer.named_modules()
        }
        self._children = set(layer.children())

    def is_part(self, module: torch.nn.Module) -> bool:
        inside = list(module.modules())[1:]
        return module in self._children and any(part in self._hooked for part in inside)

    def block(self, part: torch.nn.Module) -> Block | None:
        inside = set(part.modules()) - {part}
        own = self._only_call(part)
        calls = [call for call in self._calls if call.module in inside & set(self._hooked)]
        entries = [call for call in calls if _is_same(call.inputs, own and own.inputs)]
        others = [call for call in calls if call not in entries]
        if own is None or not entries or len(others) != 1:
            return None
        is_exit = _is_same(others[0].result, own.result)
        are_linear = all(isinstance(call.module, torch.nn.Linear) for call in calls)
        is_called_once = len({call.module for call in calls}) == len(calls)
        if not (is_exit and are_linear and is_called_once):
            return None
        return Block(
            self._names[part],
            tuple(self._names[call.module] for call in entries),
            self._names[others[0].module],
            self._feeder(own),
            len(own.output) - 1 if isinstance(own.output, tuple) else None,
        )

    def _only_call(self, module: torch.nn.Module) -> Call | None:
        calls = [call for call in self._calls if call.module is module]
        return calls[0] if len(calls) == 1 else None

    def _feeder(self, own: Call) -> str | None:
        for call in self._calls:
            is_child = call.module in self._children and call.module is not own.module
            if is_child and _is_same(call.result, own.inputs):
                return self._names[call.module]
        return None


def _is_same(tensor: Any, other: Any) -> bool:
    """Whether both are the same values in memory. Calls keep their tensors, so that no memory is
    used twice."""
    if not isinstance(tensor, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    return bool(
        tensor.data_ptr() == other.data_ptr()
        and tensor.shape == other.shape
        and tensor.stride() == other.stride()
    )
