"""The choice of formats as a part of a run: measured once, recorded for a resume, and printed."""

from itertools import accumulate
from typing import Any

from pydantic import TypeAdapter, ValidationError
from rich.console import Console

from conf.schema.mixed import Choice, MixedRecipe, prediction_lines, with_choice
from conf.schema.recipe import RecipeConfig
from conf.terminal import progress
from quantize.calibrate.batches import batches as in_batches
from quantize.calibrate.compress import Batches
from quantize.calibrate.resume import WorkFolder
from quantize.checkpoint.save import on_device
from quantize.fit import check_fit
from quantize.mixed.choose import TrialText, choose
from quantize.mixed.measure import BATCH
from quantize.mixed.plan import TRIAL_TOKENS

RECORD = "choice.json"
CHOICE = TypeAdapter(Choice)


def chosen_recipe(
    recipe: RecipeConfig,
    model: Any,
    name: str,
    batches: Batches,
    work: WorkFolder,
    console: Console,
) -> MixedRecipe:
    """The recipe with a format for each module. The model is only read, but may be on the GPU
    afterwards. A run that was interrupted keeps its choice."""
    choice = _recorded(work)
    if choice is None:
        choice = _measured(recipe, model, name, batches, console)
        work.write_record(RECORD, CHOICE.dump_json(choice).decode())
    for line in choice_lines(choice):
        console.print(f"{name}: {line}", highlight=False, soft_wrap=True)
    return with_choice(recipe, choice)


def _measured(
    recipe: RecipeConfig, model: Any, name: str, batches: Batches, console: Console
) -> Choice:
    modules = check_fit(model, recipe, name)
    on_device(model)
    with progress(console) as bars:
        task = bars.add_task("trying each layer")

        def measured(layers: int, of_layers: int) -> None:
            bars.update(task, completed=layers, total=of_layers)

        return choose(recipe, model, modules, trial_text(recipe, batches), measured)


def trial_text(recipe: RecipeConfig, batches: Batches) -> TrialText:
    """The first sequences of the calibration text, cut to the length of a trial, to judge layers
    on; and the others, as far as trials read them, to round layers for. A text of few sequences
    serves for both."""
    assert recipe.auto is not None
    rows = [row for batch in batches for row in batch["input_ids"].tolist()]
    judged = [row[: recipe.auto.length] for row in rows[: recipe.auto.samples]]
    others = rows[recipe.auto.samples :]
    if len(others) < recipe.auto.samples:
        others = rows
    before = accumulate(map(len, others), initial=0)
    read = [row for row, tokens in zip(others, before, strict=False) if tokens < TRIAL_TOKENS]
    return TrialText(judged, [batch["input_ids"] for batch in in_batches(read, BATCH)])


def _recorded(work: WorkFolder) -> Choice | None:
    text = work.record(RECORD)
    try:
        return CHOICE.validate_json(text) if text is not None else None
    except ValidationError:  # cut short: it is measured again
        return None


def choice_lines(choice: Choice) -> list[str]:
    """What was chosen, for the terminal."""
    counts = ", ".join(f"{len(group.modules)} modules {group.name}" for group in choice.groups)
    lines = [f"{choice.bits:.3f} bits a weight: {counts}"]
    return lines + prediction_lines(choice.divergence, choice.recovery)
