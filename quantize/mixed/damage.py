"""What the model loses by each format of each layer, as the recipe itself rounds the weights.

Each layer is rounded in each format, by GPTQ where the recipe has it, with the inputs that the
original's layers read. The errors of its outputs, weighted by squared gradients, estimate the
divergence of the next token (`gradients.py`).
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch

from conf.schema.mixed import LayerFormat
from conf.schema.recipe import RecipeConfig
from quantize.calibrate.solver.products import Modules, SharedProducts, tf32_products
from quantize.mixed.gradients import SquaredGradients
from quantize.mixed.merged import MergedLayer, parts_in_memory
from quantize.mixed.rounding import recipe_weight, round_tokens
from quantize.steps.base.formats import quantization_args

INPUT_TOKENS = 256  # of each module's input that are kept to round them

Measured = Callable[[int, int], None]
"""Is told how many layers are measured, and how many there are."""


class Damages:
    """The estimated divergence of every layer in every format, each alone."""

    def __init__(
        self,
        recipe: RecipeConfig,
        formats: list[LayerFormat],
        gradients: SquaredGradients,
        batches: list[torch.Tensor],
    ) -> None:
        self.recipe, self.formats, self.gradients, self.batches = (
            recipe,
            formats,
            gradients,
            batches,
        )
        self.tokens: int = sum(batch.numel() for batch in batches)
        self._keeps_inputs = any(form.activations is not None for form in formats)

    def of(self, model: Any, layers: list[MergedLayer], measured: Measured) -> list[list[float]]:
        """By layer and format."""
        damages: list[list[float]] = []
        for part in parts_in_memory(layers):
            by_module: dict[torch.nn.Module, list[float]] = {}
            for group, products, inputs in self._read(model, part):
                by_module |= self._of_group(group, products, inputs)
                done = sum(by_module.keys() >= {*layer.modules.values()} for layer in part)
                measured(len(damages) + done, len(layers))
            damages += [self._sum(by_module, layer) for layer in part]
        return damages

    def _sum(
        self, by_module: dict[torch.nn.Module, list[float]], layer: MergedLayer
    ) -> list[float]:
        """Over a layer's modules. An expert that no token visits has no damage."""
        unvisited = [0.0] * len(self.formats)
        members = (by_module.get(module, unvisited) for module in layer.modules.values())
        return [sum(values) for values in zip(*members, strict=True)]

    def _read(
        self, model: Any, layers: list[MergedLayer]
    ) -> Iterator[tuple[Modules, torch.Tensor, torch.Tensor | None]]:
        """The modules that share an input, with its products and first tokens."""
        products, first_inputs = SharedProducts(), {}

        def take(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], output: object) -> None:
            products.add(module, inputs[0])
            if self._keeps_inputs and module not in first_inputs:
                first_inputs[module] = inputs[0].flatten(0, -2)[:INPUT_TOKENS].clone()

        with ExitStack() as hooks, torch.no_grad():
            for layer in layers:
                for module in layer.modules.values():
                    hooks.callback(module.register_forward_hook(take).remove)
            for batch in self.batches:
                model.get_decoder()(batch, use_cache=False)
        for group, matrix in products.take():
            yield group, matrix, first_inputs.get(group[0])

    def _of_group(
        self, group: Modules, products: torch.Tensor, inputs: torch.Tensor | None
    ) -> dict[torch.nn.Module, list[float]]:
        weights = torch.cat([module.weight.data for module in group])
        squares = torch.cat([self.gradients.of(module) for module in group])
        columns = [self._errors(form, weights, products, inputs) * squares for form in self.formats]
        sizes = [len(module.weight) for module in group]
        sums = [[float(part.double().sum()) for part in column.split(sizes)] for column in columns]
        return {
            module: [column[number] / (2 * self.tokens) for column in sums]
            for number, module in enumerate(group)
        }

    def _errors(
        self,
        form: LayerFormat,
        weights: torch.Tensor,
        products: torch.Tensor,
        inputs: torch.Tensor | None,
    ) -> torch.Tensor:
        """The squared error of each output [rows], summed over all tokens."""
        if form.weights is None:
            return torch.zeros(len(weights), device=weights.device)
        rounded = recipe_weight(self.recipe, form.weights, weights, products)
        difference = weights.float() - rounded.float()
        with tf32_products():
            errors = (difference @ products).mul_(difference).sum(1).clamp_min(0)
        if form.activations is None or inputs is None:
            return errors
        noise = round_tokens(inputs, quantization_args(form.activations)).float() - inputs.float()
        by_token = (noise @ rounded.float().t()).square().mean(0)
        return errors + by_token * self.tokens
