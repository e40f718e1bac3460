"""Weights as a recipe rounds them to a format: by GPTQ with the products of inputs, or plainly."""

from typing import Any

import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp
from llmcompressor.observers import Observer

from conf.schema.number_format import NumberFormat
from conf.schema.recipe import RecipeConfig
from quantize.calibrate.solver.grid import Grid
from quantize.calibrate.solver.solve import solve
from quantize.steps.base.formats import quantization_args
from quantize.steps.gptq import STEP as GPTQ


def recipe_weight(
    recipe: RecipeConfig, number: NumberFormat, weight: torch.Tensor, products: torch.Tensor
) -> torch.Tensor:
    """The weights [rows, columns] as the recipe's last step leaves them, if the inputs have these
    products [columns, columns]."""
    args = quantization_args(number)
    if GPTQ.name not in recipe.steps:
        return round_weight(weight, args)
    options = recipe.options_of(GPTQ)
    found = _scales(weight, args)
    grid = Grid.of(args, weight.shape, found["scale"], found["zero_point"], found["global_scale"])
    return solve(
        weight,
        products,
        grid,
        act_order=options.act_order,
        dampening=options.dampening,
        block_size=options.block_size,
    ).weights


def round_weight(weight: torch.Tensor, args: QuantizationArgs) -> torch.Tensor:
    """The weights, each rounded to the nearest value of the format."""
    found = _scales(weight, args)
    rounded: torch.Tensor = fake_quantize(
        weight.data, found["scale"], found["zero_point"], args, global_scale=found["global_scale"]
    )
    return rounded


def round_tokens(inputs: torch.Tensor, args: QuantizationArgs) -> torch.Tensor:
    """Activations, each token with a scale of its own."""
    scale, zero_point = compute_dynamic_scales_and_zp(inputs, args, None)
    rounded: torch.Tensor = fake_quantize(inputs, scale, zero_point, args)
    return rounded


def _scales(weight: torch.Tensor, args: QuantizationArgs) -> dict[str, Any]:
    observer = Observer.load_from_registry("memoryless_minmax", base_name="weight", args=args)
    qparams: dict[str, Any] = observer(weight.data).get_qparams()
    return qparams
