"""Takes one decoder layer through its stages.

For each block, in turn: its entries' inputs are read, which needs no product of the block, and the
entries' weights are changed. Then the block runs up to its exit, with changed entries; the exit's
input is read and kept, and the exit's weights are changed. When the layer goes on behind the block,
the exit's output is computed from the kept input, once.

What the last block's exit reads is the widest of all (an MLP's inside). It is kept only where there
is room for it; else the last pass runs the block again.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from llmcompressor.core import active_session
from llmcompressor.modifiers.utils.hooks import HooksMixin

from quantize.calibrate.memory.activations import Activations, Values
from quantize.calibrate.stages.blocks import BlockModules
from quantize.calibrate.stages.replay import done, read_entries, read_exit
from quantize.calibrate.stages.search import ModifierHooks

Modules = Sequence[torch.nn.Module]


@dataclass
class Batch:
    """One batch at a layer."""

    number: int
    inputs: Values
    kept: dict[int, torch.Tensor]
    """By block: its output, or what its exit reads."""


class StagedLayer:
    """One layer, in stages."""

    def __init__(
        self,
        blocks: Sequence[BlockModules],
        forward: Callable[..., Values],
        input_names: Collection[str],
        activations: Activations,
        hooks: ModifierHooks,
    ) -> None:
        """`forward`: the layer as a function of the named inputs."""
        self._blocks, self._forward, self._hooks = blocks, forward, hooks
        self._input_names, self._activations = set(input_names), activations

    def calibrate(self, change: Callable[[Modules], None]) -> None:
        """`change`: changes the weights of modules whose inputs were read."""
        for number, block in enumerate(self._blocks):
            self._read_entries(number, block)
            change(block.entries)
            self._read_exit(number, block)
            change([block.exit])

    def outputs(self) -> Iterator[tuple[int, Values]]:
        """Each batch's number and output of the changed layer. Nothing is kept from here on."""
        last = len(self._blocks) - 1
        with HooksMixin.disable_hooks():
            for batch in self._batches():
                with ExitStack() as stack:
                    self._skip(stack, batch, last)
                    if last in batch.kept:
                        output = self._blocks[last].exit(batch.kept[last])
                        stack.enter_context(done(self._blocks[last], output))
                    outputs = self._forward(**batch.inputs)
                self._activations.delete(batch.number, map(_name, range(last + 1)))
                yield batch.number, outputs

    def _read_entries(self, number: int, block: BlockModules) -> None:
        with HooksMixin.disable_hooks(keep=self._handles(block.before_entries)):
            for batch in self._batches():
                with ExitStack() as stack:
                    if number:
                        previous = self._blocks[number - 1]
                        output = previous.exit(batch.kept[number - 1])
                        self._activations.update(batch.number, {_name(number - 1): output})
                        batch.kept[number - 1] = output
                    self._skip(stack, batch, number)
                    read_entries(block, partial(self._forward, **batch.inputs))

    def _read_exit(self, number: int, block: BlockModules) -> None:
        is_last = number == len(self._blocks) - 1
        with HooksMixin.disable_hooks(keep=self._handles([block.exit])):
            for batch in self._batches():
                with ExitStack() as stack:
                    self._skip(stack, batch, number)
                    inputs = read_exit(block, partial(self._forward, **batch.inputs))
                if not is_last or self._activations.has_room(inputs):
                    self._activations.update(batch.number, {_name(number): inputs})

    def _skip(self, stack: ExitStack, batch: Batch, number: int) -> None:
        """The blocks before this one return what was kept."""
        for earlier, block in enumerate(self._blocks[:number]):
            stack.enter_context(done(block, batch.kept[earlier]))

    def _handles(self, modules: Modules) -> set[Any]:
        return {handle for module in modules for handle in self._hooks.of(module)}

    def _batches(self) -> Iterator[Batch]:
        state = active_session().state
        names = {_name(number): number for number in range(len(self._blocks))}
        for number, values in enumerate(self._activations.iter(self._input_names | names.keys())):
            state.current_batch_idx = number
            inputs = {name: value for name, value in values.items() if name not in names}
            kept = {names[name]: value for name, value in values.items() if name in names}
            yield Batch(number, inputs, kept)


def _name(block: int) -> str:
    """The name of a kept value among a batch's activations."""
    return f"kept of block {block}"
