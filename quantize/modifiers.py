"""Builds llm-compressor's modifiers from a recipe."""

from llmcompressor.modifiers import Modifier
from pydantic import ValidationError

from conf.errors import bad_input
from conf.schema.recipe import RecipeConfig
from quantize.steps.base.step import steps_named


def modifiers(recipe: RecipeConfig) -> list[Modifier]:
    """The recipe's steps in their order, as llm-compressor runs them."""
    try:
        return [step.modifier(recipe) for step in steps_named(recipe.steps)]
    except (ValidationError, ValueError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise bad_input(f"recipe={recipe.name}: {reason}") from error


def runnable(recipe: RecipeConfig, file_modifiers: list[Modifier]) -> list[Modifier]:
    """The modifiers of a recipe file, adjusted so that llm-compressor does what the file says."""
    steps = steps_named(recipe.steps)
    return [step.runnable(modifier) for step, modifier in zip(steps, file_modifiers, strict=True)]
