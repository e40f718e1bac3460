"""`python with_new_step.py STEPS SCRATCH`: runs recipes with the algorithms of one more folder.

A process of its own: the schema of recipes is made once, when it is imported. Prints what happened
as JSON.
"""

import importlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import quantize.steps

quantize.steps.__path__.append(sys.argv[1])
scratch = Path(sys.argv[2])

from conf.compose import compose  # noqa: E402 (after the folder is known)
from conf.errors import QuantlineError  # noqa: E402
from conf.help import help_text  # noqa: E402
from quantize.command import COMMAND  # noqa: E402

OVERRIDES = ["recipe=w8a8_smooth_ptq", "recipe.steps=[wanda,rounding]"]
TEAM = "defaults: [w8a8_smooth_ptq]\nsteps: [wanda, rounding]\nwanda: {sparsity: 0.5}\n"
FILE = """
quant_stage:
  quant_modifiers:
    WandaPruningModifier: {sparsity: 0.5, mask_structure: '2:4', targets: ['re:.*_proj$']}
    QuantizationModifier: {scheme: W8A8, ignore: [lm_head]}
"""


def refused(call: Any, *arguments: Any) -> str:
    try:
        call(*arguments)
    except QuantlineError as error:
        return str(error)
    return ""


def schema() -> dict[str, Any]:
    """What options and complaints know of it."""
    typo = TEAM.replace("sparsity", "sparsty")
    (scratch / "typo.yaml").write_text(typo)
    (scratch / "pruned.yaml").write_text(TEAM)
    return {
        "help": " ".join(help_text(COMMAND).split()),
        "range": refused(compose, COMMAND, [*OVERRIDES, "recipe.wanda.sparsity=0.9"]),
        "step": refused(compose, COMMAND, [*OVERRIDES[:1], "recipe.steps=[wnada,rounding]"]),
        "option": refused(compose, COMMAND, ["recipe.wnada.sparsity=0.5"]),
        "key": refused(compose, COMMAND, ["recipe=typo"]),
        "order": refused(compose, COMMAND, [*OVERRIDES[:1], "recipe.steps=[rounding,wanda]"]),
    }


def run() -> dict[str, Any]:
    """A team's recipe with it, on a model of a few kilobytes."""
    from rich.console import Console

    from quantize.calibrate.batches import batches
    from quantize.calibrate.compress import compress
    from quantize.models.load import load
    from quantize.modifiers import modifiers
    from quantize.preflight import preflight
    from tests.quantize.models.mutations import micro

    source = micro(scratch / "model")
    config = compose(COMMAND, ["recipe=pruned", f"model.path={source}"])
    plan = preflight(source, config)
    model, tokenizer = load(source, config.model)
    tokens = [[(7 * row + column) % 250 for column in range(16)] for row in range(4)]
    outcome = compress(
        model,
        tokenizer,
        plan.recipe,
        modifiers(plan.recipe),
        batches(tokens, 2),
        None,
        Console(file=io.StringIO()),
    )
    layers = [module for name, module in model.named_modules() if name.endswith("_proj")]
    return {
        "plan": plan.lines(),
        "is_sparse": plan.recipe.is_sparse,
        "calls": importlib.import_module("quantize.steps.wanda").CALLS,
        "timed": {step: len(seconds) for step, seconds in outcome.layer_seconds.items()},
        "zeros": [float((layer.weight == 0).float().mean()) for layer in layers],
        "file": _file(config),
    }


def _file(config: Any) -> dict[str, Any]:
    """The same step in a recipe file of llm-compressor."""
    from dataclasses import replace

    from quantize.recipe_file import from_file

    path = scratch / "theirs.yaml"
    recipe = replace(config.recipe, file=str(path))
    path.write_text(FILE)
    described, _ = from_file(recipe)
    path.write_text(FILE.replace("mask_structure: '2:4'", "mask_structure: '4:8'"))
    return {
        "steps": described.steps,
        "targets": described.targets,
        "mask": refused(from_file, recipe),
    }


os.environ["QUANTLINE_RECIPES"] = str(scratch)
facts = schema()
printed, sys.stdout = sys.stdout, sys.stderr  # libraries write to standard output
facts |= run()
print(json.dumps(facts), file=printed)
