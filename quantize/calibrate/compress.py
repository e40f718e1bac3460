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
from quantize.calibrate.expert_tokens import ExpertTokens, check_expert_tokens
from quantize.calibrate.hooks import noted_errors
from quantize.calibrate.resume import WorkFolder
from quantize.calibrate.run_state import RUN, Run
from quantize.calibrate.step_check import check_steps, quantized_modules
from quantize.steps.base.changes import Errors
from quantize.steps.base.step import steps_named

Batches = list[dict[str, torch.Tensor]]


@dataclass
class Outcome:
    """The record of a compression; the weights are changed in the model itself."""

    errors: Errors
    """Errors by module and step."""
    layer_seconds: dict[str, list[float]]
    """Seconds for each layer, by step."""
    resumed_layers: int
    """Layers that an earlier, interrupted run had finished."""
    fallbacks: list[str]
    """Modules that GPTQ could only round."""
    rescaled: set[str]
    """Modules that a step scaled, and those that take up the inverse scales."""
    expert_tokens: ExpertTokens
    """Calibration tokens of each expert, by the name of the layer's experts; empty for a dense
    model, and for a recipe without text."""


def compress(
    model: Any,
    tokenizer: Any,
    recipe: RecipeConfig,
    modifiers: list[Modifier],
    batches: Batches,
    work: WorkFolder | None,
    console: Console,
    stored_as: torch.dtype = torch.bfloat16,
    min_expert_tokens: int = 0,
) -> Outcome:
    """Applies the recipe's steps to the model; resumes an interrupted run from `work`.
    `min_expert_tokens`: raises if an expert was chosen for fewer calibration tokens."""
    logger.remove()
    logger.add(sys.stderr, level="INFO")  # DEBUG prints the whole modifier at every event
    bars = progress(console)
    steps = steps_named(recipe.steps)
    later_steps = {step.name: step.joined_step(recipe) for step in steps}
    joined = {name: later for name, later in later_steps.items() if later is not None}
    run = Run(steps, bars, stored_as, work, joined)
    RUN.set(run)
    with ExitStack() as contexts:
        contexts.enter_context(_named_failure(recipe.name))
        contexts.enter_context(bars)
        contexts.enter_context(run.writer)
        contexts.enter_context(noted_errors(model, run.errors))
        for step in run.steps:
            contexts.enter_context(step.patches(recipe))
        oneshot(
            model=model,
            tokenizer=tokenizer,
            recipe=modifiers,
            dataset=DataLoader(batches, batch_size=None) if batches else None,
            pipeline=sequential.NAME,
        )
    check_steps(model, recipe, run.scaled, run.errors, run.fallbacks)
    check_expert_tokens(run.expert_tokens, min_expert_tokens, quantized_modules(model))
    return Outcome(
        dict(run.errors),
        dict(run.layer_seconds),
        run.resumed_layers,
        run.fallbacks,
        run.rescaled,
        run.expert_tokens,
    )


@contextmanager
def _named_failure(recipe: str) -> Iterator[None]:
    """Reports an llm-compressor error as bad input that names the recipe. An environment error,
    such as a full disk, passes unchanged."""
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
