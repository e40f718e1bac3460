"""Runs a recipe's steps on a loaded model, in place."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from llmcompressor import oneshot
from llmcompressor.modifiers import Modifier
from loguru import logger
from rich.console import Console
from torch.utils.data import DataLoader

from conf.errors import QuantlineError, bad_input, environment_reason, one_line
from conf.schema.recipe import RecipeConfig
from conf.terminal import progress
from quantize.calibrate import sequential
from quantize.calibrate.resume import WorkFolder
from quantize.calibrate.solver import noted_errors
from quantize.calibrate.step_check import check_steps
from quantize.steps.base.changes import Errors
from quantize.steps.base.step import steps_named

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
    """Modules that could only be rounded."""
    rescaled: set[str]
    """Modules whose weights a step scaled, or that hold the scales."""


def compress(
    model: Any,
    tokenizer: Any,
    recipe: RecipeConfig,
    modifiers: list[Modifier],
    batches: Batches,
    work: WorkFolder | None,
    console: Console,
    stored_as: torch.dtype = torch.bfloat16,
) -> Outcome:
    """Applies the recipe's steps to the model; goes on where an earlier try in `work` stopped."""
    logger.remove()
    logger.add(sys.stderr, level="DEBUG")
    bars = progress(console)
    state = sequential.Run(steps_named(recipe.steps), bars, stored_as, work)
    sequential.RUN.set(state)
    with ExitStack() as stack:
        stack.enter_context(_named_failure(recipe.name))
        stack.enter_context(bars)
        stack.enter_context(noted_errors(model, state.errors))
        for step in state.steps:
            stack.enter_context(step.patches(recipe))
        oneshot(
            model=model,
            tokenizer=tokenizer,
            recipe=modifiers,
            dataset=DataLoader(batches, batch_size=None) if batches else None,
            pipeline=sequential.NAME,
        )
    check_steps(model, recipe, state.scaled, state.errors, state.fallbacks)
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
