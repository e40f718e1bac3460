"""Which recipes several processes can calibrate together."""

import math

from conf.errors import QuantlineError, bad_input
from conf.schema.commands import QuantizeConfig
from conf.schema.steps import known_steps
from quantize.steps.base.step import steps_named


def check_parallel(config: QuantizeConfig) -> None:
    """Raises if the text cannot be split, before anything is started."""
    shards = shard_count(config)
    if shards == 1:
        return
    option = f"gpus={config.gpus}" if config.gpus > 1 else f"shards={shards}"
    recipe = config.recipe
    if recipe.file:
        raise bad_input(f"{option}: recipe.file={recipe.file} runs on one GPU and one shard only")
    if recipe.auto is not None:
        raise bad_input(f"{option}: recipe={recipe.name} tries formats on one GPU only")
    if not recipe.needs_text:
        raise bad_input(f"{option}: recipe={recipe.name} reads no text that could be split")
    for step in steps_named(recipe.steps):
        if not step.shares_text(recipe):
            raise _unable(option, recipe.name, step.name)
    if recipe.activations is not None and recipe.activations.dynamic is not True:
        raise bad_input(
            f"{option}: recipe={recipe.name} calibrates static scales of activations, which one "
            "process must see all text for"
        )
    if recipe.kv_cache or config.kv_cache:
        raise bad_input(
            f"{option}: kv_cache={recipe.kv_cache or config.kv_cache} calibrates scales that one "
            "process must see all text for"
        )
    batches = math.ceil(config.calibration.samples / config.batch_size)
    if batches < shards and config.calibration.pack:
        raise bad_input(
            f"{option}: calibration.samples={config.calibration.samples} in batches of "
            f"batch_size={config.batch_size} are only {batches} batches; lower batch_size"
        )


def shard_count(config: QuantizeConfig) -> int:
    """Parts of the text whose sums are made alone."""
    return config.shards or config.gpus


def _unable(option: str, recipe: str, step: str) -> QuantlineError:
    able = [other.name for other in steps_named(known_steps()) if other.in_parallel]
    return bad_input(
        f"{option}: recipe={recipe} has the step {step}, which runs in one process; the steps "
        f"{', '.join(sorted(able))} can share their text"
    )
