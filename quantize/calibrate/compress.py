"""Runs a recipe's steps on a loaded model, in place."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from llmcompressor import oneshot
from llmcompressor.modifiers import Modifier
from loguru import logger
from rich.console import Console
from torch.utils.data import DataLoader

from conf.errors import QuantlineError, bad_input, environment_reason, gate_failed, one_line
from conf.schema.recipe import RecipeConfig
from conf.terminal import progress
from quantize.calibrate import sequential
from quantize.calibrate.resume import WorkFolder
from quantize.calibrate.solver import Errors, ours
from quantize.steps.step_check import check_steps

Batches = list[dict[str, torch.Tensor]]


@dataclass
class Outcome:
    """What the steps did, beside changing the weights."""

    errors: Errors
    """Each module's error, by step."""
    layer_seconds: dict[str, list[float]]
    """Seconds for each layer, by step."""
    resumed_layers: int
    """Layers that an earlier try had finished."""
    fallbacks: list[str]
    """Modules that GPTQ could only round."""
    rescaled: set[str]
    """Modules that SmoothQuant or AWQ may have scaled."""


def compress(
    model: Any,
    tokenizer: Any,
    recipe: RecipeConfig,
    steps: list[Modifier],
    batches: Batches,
    work: WorkFolder | None,
    console: Console,
    stored_as: torch.dtype = torch.bfloat16,
) -> Outcome:
    """Applies the recipe's steps to the model; goes on where an earlier try in `work` stopped."""
    logger.remove()
    logger.add(sys.stderr, level="DEBUG")
    bars = progress(console)
    state = sequential.Run(list(recipe.steps), bars, stored_as, work)
    sequential.RUN.set(state)
    with _named_failure(recipe.name), bars, ours(model, recipe.is_sparse, state.errors):
        oneshot(
            model=model,
            tokenizer=tokenizer,
            recipe=steps,
            dataset=DataLoader(batches, batch_size=None) if batches else None,
            pipeline=sequential.NAME,
        )
    _check_fallbacks(state.fallbacks, state.errors, recipe)
    check_steps(model, recipe, state.smoothed, state.errors)
    return Outcome(
        dict(state.errors),
        dict(state.layer_seconds),
        state.resumed_layers,
        state.fallbacks,
        state.rescaled,
    )


@contextmanager
def _named_failure(recipe: str) -> Iterator[None]:
    """What llm-compressor cannot do with this recipe and model; a full disk is not that."""
    try:
        yield
    except QuantlineError:
        raise
    except Exception as error:
        if environment_reason(error):
            raise
        raise bad_input(
            f"recipe={recipe}: llm-compressor cannot run it on this model: {one_line(error)}"
        ) from error


def _check_fallbacks(fallbacks: list[str], errors: Errors, recipe: RecipeConfig) -> None:
    limit = recipe.gptq.max_fallback
    if fallbacks and len(fallbacks) > limit * len(errors):
        raise gate_failed(
            f"recipe={recipe.name}: GPTQ could only round {len(fallbacks)} of {len(errors)} "
            f"modules, {fallbacks[0]} the first; raise recipe.gptq.dampening or "
            f"calibration.samples, or allow it with recipe.gptq.max_fallback (now {limit})"
        )
