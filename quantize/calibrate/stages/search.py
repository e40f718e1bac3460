"""Which layers can be calibrated in stages: those whose blocks, one after the other, give to the
bit what the whole layer gives. The first layer of a kind is tried for all."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from llmcompressor.modifiers.utils.hooks import HooksMixin
from loguru import logger
from torch.utils.hooks import RemovableHandle

from quantize.calibrate.last_input import OBSERVERS
from quantize.calibrate.stages.blocks import Block, BlockModules, Call, blocks_of, recorded_calls
from quantize.calibrate.stages.replay import done, read_entries, read_exit
from quantize.models.experts import LinearExperts

RunLayer = Callable[[], object]


class ModifierHooks:
    """The hooks of the modifiers that take part in a pass."""

    def __init__(self, modifiers: Sequence[Any]) -> None:
        self._handles = {handle.id: handle for each in modifiers for handle in each._hooks}

    def of(self, module: torch.nn.Module) -> set[RemovableHandle]:
        ids = (*module._forward_pre_hooks, *module._forward_hooks)
        return {self._handles[number] for number in ids if number in self._handles}


class BlockSearch:
    """Finds the blocks of a step's layers."""

    def __init__(self, layers: Sequence[Sequence[torch.nn.Module]], hooks: ModifierHooks) -> None:
        """`layers`: all modules of each layer."""
        self._hooks = hooks
        self._uses = Counter(module for layer in layers for module in layer)
        self._known: dict[tuple[type, tuple[str, ...]], list[Block]] = {}

    def blocks(self, parts: Collection[torch.nn.Module], run_layer: RunLayer) -> list[BlockModules]:
        """The blocks of a layer; empty if it has to be calibrated as a whole. `parts`: the modules
        that its pass calls, the decoder layer one of them; `run_layer`: runs one batch."""
        modules = [module for part in parts for module in part.modules()]
        hooked = [module for module in modules if self._hooks.of(module)]
        decoders = [part for part in parts if any(each in hooked for each in part.modules())]
        if len(decoders) != 1 or any(self._uses[module] > 1 for module in hooked):
            return []
        if any(hasattr(module, name) for module in modules for name in OBSERVERS):
            return []
        if any(isinstance(module, LinearExperts) for module in modules):
            return []  # a trial would hold what every expert computes for a whole batch
        (layer,) = decoders
        names = tuple(name for name, module in layer.named_modules() if module in hooked)
        key = type(layer), names
        if key not in self._known:
            self._known[key] = _tried(layer, hooked, run_layer)
        return [block.in_layer(layer) for block in self._known[key]]


def _tried(
    layer: torch.nn.Module, hooked: Collection[torch.nn.Module], run_layer: RunLayer
) -> list[Block]:
    with torch.no_grad(), HooksMixin.disable_hooks():
        try:
            with recorded_calls(layer) as calls:
                run_layer()
            blocks = blocks_of(layer, calls, hooked)
            if blocks and _replays(layer, blocks, calls, run_layer):
                return blocks
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a layer that cannot be run in parts
            logger.info(f"{type(layer).__name__}: {error}")
    logger.info(f"{type(layer).__name__} is calibrated as a whole")
    return []


def _replays(
    layer: torch.nn.Module, names: list[Block], calls: list[Call], run_layer: RunLayer
) -> bool:
    """Whether every input and the layer's output are the same in parts."""
    whole = {call.module: call for call in calls}
    with ExitStack() as done_blocks:
        for block in (each.in_layer(layer) for each in names):
            read: list[torch.Tensor] = []
            entry = block.entries[0]
            with entry.register_forward_pre_hook(lambda _, args, read=read: read.append(args[0])):
                read_entries(block, run_layer)
            read.append(read_exit(block, run_layer))
            expected = [whole[entry].inputs, whole[block.exit].inputs]
            if not all(map(_is_equal, read, expected)):
                return False
            done_blocks.enter_context(done(block, block.exit(read[-1])))
        with recorded_calls(layer) as in_parts:
            run_layer()
    return _is_equal(in_parts[-1].result, whole[layer].result)


def _is_equal(tensor: torch.Tensor, other: torch.Tensor | None) -> bool:
    return other is not None and torch.equal(tensor, other)
