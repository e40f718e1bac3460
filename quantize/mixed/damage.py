"""What the model loses by each format of each layer, as the recipe itself rounds the weights.

Each layer is rounded in each format, by GPTQ where the recipe has it, for the inputs that the
original's layers read. On other text, the errors of its outputs and the gradients there estimate
the divergence of the next token (`gradients.py`).
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from conf.schema.mixed import LayerFormat
from conf.schema.recipe import RecipeConfig
from quantize.calibrate.solver.products import Modules, SharedProducts
from quantize.mixed.gradients import Gradients, gradients_of
from quantize.mixed.merged import MergedLayer, parts_in_memory
from quantize.mixed.rounding import recipe_weight, round_tokens
from quantize.steps.base.formats import quantization_args

Batches = list[torch.Tensor]
Measured = Callable[[int, int], None]
"""Is told how many layers are measured, and how many there are."""


@dataclass(frozen=True)
class Trials:
    """The formats to try, and on which text."""

    recipe: RecipeConfig
    formats: list[LayerFormat]
    calibrated: Batches
    """Text whose inputs layers are rounded for."""
    judged: Batches
    """Text on which they are judged."""

    @property
    def _tokens(self) -> int:
        return sum(batch.numel() for batch in self.judged)

    def damages(
        self, model: Any, layers: list[MergedLayer], measured: Measured
    ) -> list[list[float]]:
        """The estimated divergence by layer and format, each layer alone."""
        damages: dict[str, list[float]] = {
            layer.name: [0.0] * len(self.formats) for layer in layers
        }
        tried: set[torch.nn.Module] = set()
        for part in parts_in_memory(layers, self._tokens):
            modules = [module for layer in part for module in layer.modules.values()]
            gradients = gradients_of(model, modules, self.judged)
            for group, products in _products(model, modules, self.calibrated):
                self._add(damages, part, group, products, gradients)
                tried |= {*group}
                done = sum({*layer.modules.values()} <= tried for layer in layers)
                measured(done, len(layers))
        return list(damages.values())

    def _add(
        self,
        damages: dict[str, list[float]],
        layers: list[MergedLayer],
        group: Modules,
        products: torch.Tensor,
        gradients: Gradients,
    ) -> None:
        """Adds the damage of modules that share an input. Of modules of one layer, the effects on
        the next token are added before they are squared."""
        read = {module: pair for module in group if (pair := gradients.of(module)) is not None}
        if not read:
            return  # an expert that no judged token visits
        members = {module: layer.name for layer in layers for module in layer.modules.values()}
        weights = torch.cat([module.weight.data for module in read]).float()
        inputs = next(iter(read.values()))[0].float()
        tokens = self._tokens
        for number, form in enumerate(self.formats):
            if form.weights is None:
                continue
            errors = self._errors(form, weights, products, inputs)
            effects: dict[str, torch.Tensor] = defaultdict(lambda: torch.zeros(len(inputs)))
            parts = errors.split([module.out_features for module in read], dim=1)
            for (module, (_, gradient)), error in zip(read.items(), parts, strict=True):
                effects[members[module]] += (error * gradient.float()).sum(1).cpu()
            for name, effect in effects.items():
                damages[name][number] += float(effect.double().square().sum()) / (2 * tokens)

    def _errors(
        self,
        form: LayerFormat,
        weights: torch.Tensor,
        products: torch.Tensor,
        inputs: torch.Tensor,
    ) -> torch.Tensor:
        """The error of each output [tokens, rows]."""
        assert form.weights is not None
        rounded = recipe_weight(self.recipe, form.weights, weights, products).float()
        if form.activations is None:
            return inputs @ (rounded - weights).t()
        tokens = round_tokens(inputs.unsqueeze(0), quantization_args(form.activations))[0]
        return tokens.float() @ rounded.t() - inputs @ weights.t()


def _products(
    model: Any, modules: list[torch.nn.Linear], batches: Batches
) -> Iterator[tuple[Modules, torch.Tensor]]:
    """X'X of the modules that share an input."""
    products = SharedProducts()

    def take(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], output: object) -> None:
        products.add(module, inputs[0])

    with ExitStack() as hooks, torch.no_grad():
        for module in modules:
            hooks.callback(module.register_forward_hook(take).remove)
        for batch in batches:
            model.get_decoder()(batch, use_cache=False)
    yield from products.take()
