"""How much each block of layers loses by a recipe's format.

The model is rounded without data. Then each
block, a layer's attention or its feed-forward part, is quantized alone, and the next-token
distributions are compared with the original's on the same text.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from compressed_tensors.quantization import disable_quantization, enable_quantization
from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import QuantizationModifier

from conf.compose import compose
from conf.errors import bad_input
from conf.formats.quant_args import GROUPED
from conf.process.inside import Send
from conf.schema.commands import AccuracyConfig
from conf.schema.model import ModelConfig
from conf.schema.recipe import RecipeConfig
from conf.text import windows
from quantize.checkpoint.reload import mean_divergence, weights_held
from quantize.checkpoint.save import on_device
from quantize.command import COMMAND
from quantize.fit import check_fit, fitting_group, for_model
from quantize.models.fetch import fetch
from quantize.models.load import load
from quantize.models.source import check_source
from quantize.programs import Block, BlockMeasured, SensitivityRequest
from quantize.steps.base.formats import formats

BLOCK = re.compile(r"(.*\.layers\.\d+\.\w+)\.")
FULL_BITS = 16


def sensitivity(
    model_config: ModelConfig, recipe: RecipeConfig, accuracy: AccuracyConfig
) -> Iterator[BlockMeasured]:
    """Every block's divergence from the original, and the extra bytes if it stays unquantized."""
    if recipe.weights is None:
        raise bad_input(f"recipe={recipe.name}: it does not change the format of weights")
    if recipe.weights.codebooks is not None:
        raise bad_input(f"recipe={recipe.name}: blocks in codebooks cannot be measured one by one")
    source = fetch(model_config)
    check_source(source, model_config)
    model, tokenizer = load(source, model_config)
    recipe = _with_fitting_groups(model, for_model(recipe, model))
    modules = check_fit(model, recipe, str(model_config.name))
    token_windows = windows(accuracy, lambda text: list(tokenizer(text)["input_ids"]))
    on_device(model)
    original_logits = [_logits(model, window) for window in token_windows]
    oneshot(model=model, recipe=QuantizationModifier(**formats(recipe)))
    blocks = blocks_of(list(modules))
    assert recipe.weights is not None
    quantized_bits = recipe.weights.bits
    model.apply(disable_quantization)
    for name, module_names in blocks.items():
        linears = [modules[module_name] for module_name in module_names]
        for linear in linears:
            enable_quantization(linear)
        with weights_held(model):
            divergences = [
                mean_divergence(logits, _logits(model, window))
                for logits, window in zip(original_logits, token_windows, strict=True)
            ]
        for linear in linears:
            disable_quantization(linear)
        weights = sum(linear.in_features * linear.out_features for linear in linears)
        extra_bytes = weights * (FULL_BITS - quantized_bits) / 8
        yield BlockMeasured(
            Block(name, module_names, sum(divergences) / len(divergences), extra_bytes), len(blocks)
        )


def blocks_of(names: list[str]) -> dict[str, list[str]]:
    """Module names by block; a module outside the layers is a block of its own. An engine fuses the
    matrices of a block, so all of them stay unquantized or none."""
    blocks: dict[str, list[str]] = defaultdict(list)
    for name in names:
        match = BLOCK.match(name)
        blocks[match[1] if match else name].append(name)
    return dict(blocks)


def _with_fitting_groups(model: Any, recipe: RecipeConfig) -> RecipeConfig:
    """The recipe with the largest group size that fits, if its own does not."""
    assert recipe.weights is not None
    if recipe.weights.strategy not in GROUPED:
        return recipe
    largest = fitting_group(model, recipe, "accuracy=sensitivity")
    size = min(int(recipe.weights.group_size or largest), largest)
    return replace(recipe, weights=replace(recipe.weights, group_size=size))


def _logits(model: Any, window: list[int]) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([window], device=model.device)).logits[0]
    return logits.float().cpu()


def measure_blocks(request: SensitivityRequest, send: Send[BlockMeasured]) -> None:
    recipe: RecipeConfig = compose(COMMAND, [f"recipe={request.recipe}"]).recipe
    for measured in sensitivity(request.model, recipe, request.accuracy):
        send(measured)
