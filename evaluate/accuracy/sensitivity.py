"""Measures which blocks a recipe's format harms, and which of them are worth ignoring."""

import os
import statistics
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.table import Table

from conf import sources
from conf.cache import log_file
from conf.checkpoint_hash import checkpoint_hash
from conf.errors import QuantlineError, bad_input, environment_failure, unknown
from conf.models import ORIGINAL
from conf.override_text import command_text, option_text
from conf.process.running import stream
from conf.schema.commands import EvaluateConfig
from conf.terminal import progress, say, table_console
from evaluate.accuracy.preflight import check_text
from evaluate.measure.environment import cell_key, environment
from evaluate.results.recorder import NARROWEST_TABLE
from evaluate.results.recorder import earlier_rows as rows_before
from evaluate.results.results_file import append, misfit
from evaluate.results.row_types import Part
from evaluate.results.row_values import Block, SensitivityValues
from evaluate.results.rows import Row, SensitivityRow, current, line_content
from quantize.programs import SENSITIVITY, SensitivityRequest
from serve.engine.launch import model_folder

FRAGILE = 3.0  # times the median divergence
MOST_BYTES = 0.1  # share of the bytes that the recipe saves
SHOWN = 12
SHOWN_VALUES = {
    *("median_divergence", "blocks", "worth_ignoring", "ignore"),
    *("ignored_bytes", "ignored_divergence", "total_divergence"),
}


def measure_sensitivity(config: EvaluateConfig) -> list[Row]:
    """One row per recipe: every block's divergence, and the modules to ignore."""
    if not config.recipes:
        raise bad_input("accuracy=sensitivity: name the recipes, as 'recipes=[w4a16_gptq]'")
    known_recipes = sources.choices("recipe", sources.folders_of([]))
    names = [name for name in config.recipes if name != ORIGINAL]
    for name in names:
        if name not in known_recipes:
            raise unknown(f"recipes={name}", name, known_recipes)
    path = Path(config.results).expanduser()
    facts = environment(config.gpu, config.engine)
    folder = model_folder(config.model)
    check_text(config.accuracy, folder)
    weights = checkpoint_hash(folder)
    rows = current(rows_before(config))
    earlier_rows = {row.key: row for row in rows if isinstance(row, SensitivityRow)}
    measured: list[Row] = []
    for name in names:
        key = cell_key(facts, (name, config.accuracy.kind), weights, config.accuracy.identity())
        row = earlier_rows.get(key)
        if row is None or config.force or not row.values.names >= SHOWN_VALUES:
            row = SensitivityRow(
                model=str(config.model.name),
                checkpoint=name,
                measure=config.accuracy.kind,
                repeat=0,
                key=key,
                values=_measure_blocks(config, name),
                settings=Part(**asdict(config.accuracy)),
                environment=facts.with_fields(checkpoint_sha256=weights),
                generation=earlier_rows[key].generation + 1 if row is not None else 0,
                time=datetime.now(UTC).isoformat(timespec="seconds"),
            )
            fault = misfit(line_content(row))
            if fault:
                raise environment_failure(f"{name}: the measurement cannot be recorded: {fault}")
            append(path, row)
        _show(row)
        measured.append(row)
    return measured


def _measure_blocks(config: EvaluateConfig, recipe: str) -> SensitivityValues:
    """Measures the blocks in a quantize process."""
    request = SensitivityRequest(config.model, recipe, config.accuracy)
    log = log_file(f"sensitivity-{recipe}-{os.getpid()}")
    say(f"{recipe}: quantizing one block at a time (log in {log})")
    blocks: list[Block] = []
    try:
        with progress() as bars:
            task = bars.add_task(recipe, total=None)
            for measured in stream(SENSITIVITY, request, log):
                blocks.append(Block(**asdict(measured.block)))
                bars.update(task, completed=len(blocks), total=measured.blocks)
    except QuantlineError as error:
        raise QuantlineError(f"{recipe}: {error}", error.exit_code) from error
    return summary(blocks)


def summary(blocks: list[Block]) -> SensitivityValues:
    """The blocks, worst first, and the fragile ones that cost few bytes to ignore."""
    ordered = sorted(blocks, key=lambda block: -block.divergence)
    median = statistics.median(block.divergence for block in blocks)
    bytes_left = MOST_BYTES * sum(block.bytes for block in blocks)
    worth_ignoring: list[Block] = []
    for block in ordered:
        if block.divergence < FRAGILE * median:
            break
        if block.bytes <= bytes_left:
            worth_ignoring.append(block)
            bytes_left -= block.bytes
    return SensitivityValues(
        blocks=ordered,
        median_divergence=median,
        worth_ignoring=[block.block for block in worth_ignoring],
        ignore=[module for block in worth_ignoring for module in block.modules],
        ignored_bytes=sum(block.bytes for block in worth_ignoring),
        ignored_divergence=sum(block.divergence for block in worth_ignoring),
        total_divergence=sum(block.divergence for block in blocks),
    )


def _show(row: SensitivityRow) -> None:
    values = row.values
    table = Table(
        *("block", "divergence alone", "times the median", "MB to leave it alone"),
        title=f"{row.model}, {row.checkpoint}: the blocks with the largest divergence",
    )
    median = values.median_divergence
    for block in values.blocks[:SHOWN]:
        times = block.divergence / median if median else 0.0
        megabytes = block.bytes / 1e6
        table.add_row(block.block, f"{block.divergence:.5f}", f"{times:.1f}", f"{megabytes:.1f}")
    table_console(NARROWEST_TABLE).print(table)
    if not values.ignore:
        say("no block has a far larger divergence than the others: ignoring some would gain little")
        return
    share = (values.ignored_divergence or 0.0) / (values.total_divergence or 1)
    megabytes = (values.ignored_bytes or 0.0) / 1e6
    say(
        f"{', '.join(values.worth_ignoring)}: {share:.0%} of all blocks' divergence for "
        f"{megabytes:.1f} MB; exclude them from quantization with"
    )
    options = {"model": row.model, "recipe": row.checkpoint, "ignore": values.ignore}
    print(command_text("quantize", *(option_text(*option) for option in options.items())))
