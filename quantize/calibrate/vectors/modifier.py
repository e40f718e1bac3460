"""The modifier that stores linear layers in codebooks.

llm-compressor has none for it. This one follows the same events as its GPTQ: it takes the inputs of
modules in the pass through a layer, and changes the layer's weights at the end of the pass. A
module keeps its weight, with the values that its codebooks stand for, beside the tensors that are
stored later: so passes, saved layers and checks work as in every other step.
"""

from typing import Any

import torch
from compressed_tensors.offload import disable_offloading
from compressed_tensors.utils import match_named_modules
from llmcompressor.core import Event, State
from llmcompressor.modifiers import Modifier
from pydantic import PrivateAttr

from conf.formats.quant_args import Codebooks, QuantGroup, vector_args
from conf.formats.vptq import METHOD
from quantize.calibrate.hooks import log_errors
from quantize.calibrate.run_state import RUN
from quantize.calibrate.solver.products import Modules, SharedProducts
from quantize.calibrate.vectors.solve import Factor, Settings, solve
from quantize.parallel.ranks import RANKS
from quantize.vptq.attached import attach, fill


class VectorModifier(Modifier):  # type: ignore[misc]
    """Finds codebooks for each linear layer, and rounds the layer to them."""

    requires_calibration_data: bool = True
    codebooks: Codebooks
    settings: Settings
    targets: list[str]
    ignore: list[str]

    _names: dict[torch.nn.Module, str] = PrivateAttr(default_factory=dict)
    _products: SharedProducts = PrivateAttr(default_factory=SharedProducts)
    _fallbacks: list[str] = PrivateAttr(default_factory=list)

    @property
    def fallbacks(self) -> list[str]:
        """Modules whose later columns could not compensate for errors."""
        return self._fallbacks

    def on_initialize(self, state: State, **kwargs: Any) -> bool:
        group = QuantGroup(METHOD, vector_args(self.codebooks), format=METHOD)
        for name, module in match_named_modules(state.model, self.targets, self.ignore):
            if isinstance(module, torch.nn.Linear):
                self._names[module] = name
                attach(module, group, RUN.get().stored_as)
        return True

    def on_calibration_start(self, state: State, event: Event, **kwargs: Any) -> None:
        for module in self._names:
            self.register_hook(module, self._take_input, "forward")

    def on_sequential_epoch_end(self, state: State, event: Event, **kwargs: Any) -> None:
        with torch.no_grad(), disable_offloading():
            for modules, matrix in self._products.take():
                self._store(modules, matrix)

    def on_calibration_end(self, state: State, event: Event, **kwargs: Any) -> None:
        self.remove_hooks()

    def _take_input(
        self, module: torch.nn.Module, args: tuple[torch.Tensor, ...], output: object
    ) -> None:
        self._products.add(module, args[0])

    def _store(self, modules: Modules, matrix: torch.Tensor) -> None:
        factored = Factor.of(matrix, self.settings)
        originals = [module.weight.data.clone() for module in modules]
        changed = []
        for module, tensors in zip(modules, self._solved(modules, factored), strict=True):
            assert isinstance(module, torch.nn.Linear)
            changed.append(fill(module, tensors))
        if factored.fell_back:
            self._fallbacks += [self._names[module] for module in modules]
        log_errors("VPTQ", modules, originals, changed, matrix)

    def _solved(self, modules: Modules, factored: Factor) -> list[dict[str, torch.Tensor]]:
        """The tensors of each module. Ranks take the modules in turn: one codebook serves all rows
        of a module."""
        ranks, stored_as = RANKS.get(), RUN.get().stored_as
        own = {
            number: solve(module.weight.data, factored, self.codebooks, self.settings, stored_as)
            for number, module in enumerate(modules)
            if number % ranks.size == ranks.rank
        }
        if not ranks.are_several:
            return list(own.values())
        on_host = {
            number: {name: tensor.cpu() for name, tensor in tensors.items()}
            for number, tensors in own.items()
        }
        everyone = ranks.objects(on_host)
        return [
            {
                name: tensor.to(modules[number].weight.device)
                for name, tensor in everyone[number % ranks.size][number].items()
            }
            for number in range(len(modules))
        ]
