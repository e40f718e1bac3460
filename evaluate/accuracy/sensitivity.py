"""Which layers a recipe's format hurts, and which of them are worth leaving alone."""

import statistics
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from conf import sources
from conf.cache import log_file
from conf.errors import QuantlineError, bad_input, unknown, world_fault
from conf.models import ORIGINAL
from conf.process.running import stream
from conf.schema.commands import EvaluateConfig
from conf.terminal import progress, say
from evaluate.measure.environment import environment, key
from evaluate.results.rows import Row, append, current, kept, misfit, read
from quantize.programs import SENSITIVITY, SensitivityRequest
from serve.checks import checkpoint_hash
from serve.engine.launch import model_folder

FRAGILE = 3.0  # times the median divergence
MOST_BYTES = 0.1  # of all that the recipe saves
SHOWN = 12
SHOWN_VALUES = {
    *("median_divergence", "blocks", "worth_ignoring", "ignore"),
    *("ignored_bytes", "ignored_divergence", "total_divergence"),
}


def measure_sensitivity(config: EvaluateConfig) -> list[Row]:
    """One row for each recipe: every block's divergence, and what to ignore."""
    if not config.recipes:
        raise bad_input("accuracy=sensitivity: name the recipes, as 'recipes=[w4a16_gptq]'")
    known = sources.choices("recipe", sources.folders_of([]))
    names = [name for name in config.recipes if name != ORIGINAL]
    for name in names:
        if name not in known:
            raise unknown(f"recipes={name}", name, known)
    path = Path(config.results).expanduser()
    facts = environment(config.gpu, config.engine)
    weights = checkpoint_hash(model_folder(config.model))
    rows, faults = read(path)
    for fault in faults:
        say(f"{fault}; the line is left alone")
    before = {row.key: row for row in current(rows) if row.kind == "sensitivity"}
    measured = []
    for name in names:
        stated = key(facts, (name, config.accuracy.kind), weights, config.accuracy)
        row = before.get(stated)
        if row is None or config.force or not set(row.values) >= SHOWN_VALUES:
            row = Row(
                kind="sensitivity",
                model=str(config.model.name),
                checkpoint=name,
                measure=config.accuracy.kind,
                repeat=0,
                key=stated,
                values=_measured(config, name),
                settings=asdict(config.accuracy),
                environment=facts | {"checkpoint_sha256": weights},
                generation=before[stated].generation + 1 if row is not None else 0,
                time=datetime.now(UTC).isoformat(timespec="seconds"),
            )
            wrong = misfit(kept(row))
            if wrong:
                raise world_fault(f"{name}: what was measured cannot be kept: {wrong}")
            append(path, row)
        _show(row)
        measured.append(row)
    return measured


def _measured(config: EvaluateConfig, recipe: str) -> dict[str, Any]:
    """Has quantize measure the blocks in a process of its own."""
    request = SensitivityRequest(config.model, recipe, config.accuracy)
    log = log_file(f"sensitivity-{recipe}")
    say(f"{recipe}: rounding one block after the other (log in {log})")
    blocks: list[dict[str, Any]] = []
    try:
        with progress() as bars:
            task = bars.add_task(recipe, total=None)
            for measured in stream(SENSITIVITY, request, log):
                blocks.append(asdict(measured.block))
                bars.update(task, completed=len(blocks), total=measured.blocks)
    except QuantlineError as error:
        raise QuantlineError(f"{recipe}: {error}", error.exit_code) from error
    return summary(blocks)


def summary(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    """The blocks, worst first, and those that stand out and cost little to leave alone."""
    ordered = sorted(blocks, key=lambda block: -block["divergence"])
    middle = statistics.median(block["divergence"] for block in blocks)
    room = MOST_BYTES * sum(block["bytes"] for block in blocks)
    worth: list[dict[str, Any]] = []
    for block in ordered:
        if block["divergence"] < FRAGILE * middle:
            break
        if block["bytes"] <= room:
            worth.append(block)
            room -= block["bytes"]
    return {
        "blocks": ordered,
        "median_divergence": middle,
        "worth_ignoring": [block["block"] for block in worth],
        "ignore": [module for block in worth for module in block["modules"]],
        "ignored_bytes": sum(block["bytes"] for block in worth),
        "ignored_divergence": sum(block["divergence"] for block in worth),
        "total_divergence": sum(block["divergence"] for block in blocks),
    }


def _show(row: Row) -> None:
    values = row.values
    table = Table(
        *("block", "divergence alone", "times the median", "MB to leave it alone"),
        title=f"{row.model}, {row.checkpoint}: the blocks that pay most",
    )
    middle = values["median_divergence"]
    for block in values["blocks"][:SHOWN]:
        times = block["divergence"] / middle if middle else 0.0
        megabytes = block["bytes"] / 1e6
        table.add_row(
            block["block"], f"{block['divergence']:.5f}", f"{times:.1f}", f"{megabytes:.1f}"
        )
    Console().print(table)
    if not values["ignore"]:
        say("no block stands out: leaving some alone would buy little")
        return
    share = values["ignored_divergence"] / (values["total_divergence"] or 1)
    say(
        f"{', '.join(values['worth_ignoring'])}: {share:.0%} of all blocks' divergence for "
        f"{values['ignored_bytes'] / 1e6:.1f} MB; leave them alone with"
    )
    print(
        f"python -m quantize model={row.model} recipe={row.checkpoint} "
        f"'ignore=[{','.join(values['ignore'])}]'"
    )
