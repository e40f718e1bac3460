"""The options of the command that a row records which say where its model and checkpoint are.

A row has names alone. A model or checkpoint in a folder of the user's, and the requests of a trace,
are found again only with the options that named them.
"""

import re
import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from conf import sources
from conf.models import ORIGINAL
from conf.override_text import option_text
from evaluate.results.rows import Row, SpeedRow

OPTION = re.compile(r"\+*[A-Za-z_][\w.-]*=")
ROOT, CHECKPOINTS, REPEATS = "checkpoint_root", "checkpoints", "repeats"
OF_TRAFFIC = ("traffic", "capacity")


@dataclass(frozen=True)
class RecordedOption:
    """An option as it was typed, and its value."""

    text: str
    value: Any


def model_options(row: Row) -> list[str]:
    """The options that name the row's model."""
    recorded = recorded_options(row.environment.command or "")
    below = [option.text for name, option in recorded.items() if name.startswith("model.")]
    if row.model in sources.choices("model", sources.folders_of([])) or not below:
        return [option_text("model", row.model), *below]
    return below


def served_checkpoint(row: Row) -> list[str]:
    """The options with which `serve` finds the row's checkpoint: its recipe, or its folder."""
    recorded = recorded_options(row.environment.command or "")
    folder = _folder(recorded, row.checkpoint)
    if folder is not None and not row.environment.has_random_weights:
        return [option_text("checkpoint", folder)]
    root = [recorded[ROOT].text] if ROOT in recorded else []
    return [*model_options(row), option_text("recipe", row.checkpoint), *root]


def measured_checkpoints(rows: list[Row]) -> list[str]:
    """The options with which `evaluate` finds the rows' checkpoints; none where it looks for all
    published ones by itself."""
    options = []
    folders = []
    for row in rows:
        recorded = recorded_options(row.environment.command or "")
        options += [recorded[ROOT].text] if ROOT in recorded else []
        folder = _folder(recorded, row.checkpoint)
        folders += [folder] if folder is not None else []
    given = [option_text(CHECKPOINTS, list(dict.fromkeys(folders)))] if folders else []
    return [*dict.fromkeys(options), *given]


def has_traffic(row: Row) -> bool:
    return isinstance(row, SpeedRow) and row.settings.traffic is not None


def traffic_options(row: Row) -> list[str]:
    """The options that say which requests traffic has."""
    recorded = recorded_options(row.environment.command or "")
    return [
        option.text for name, option in recorded.items() if name.partition(".")[0] in OF_TRAFFIC
    ]


def workload_options(row: Row) -> list[str]:
    """The options that changed the row's scenario, and how often it was measured."""
    changed = f"scenario.{row.measure}."
    recorded = recorded_options(row.environment.command or "")
    return [
        option.text
        for name, option in recorded.items()
        if name.startswith(changed) or name == REPEATS
    ]


def _folder(recorded: dict[str, RecordedOption], checkpoint: str) -> str | None:
    """The folder or hub id that the option `checkpoints` gives for a name."""
    given = recorded.get(CHECKPOINTS)
    if given is None or checkpoint == ORIGINAL:
        return None
    entries = given.value if isinstance(given.value, list) else [given.value]
    names = {Path(str(entry)).name: str(entry) for entry in entries}
    return names.get(checkpoint)


@cache
def recorded_options(command: str) -> dict[str, RecordedOption]:
    """The options in a command, by name. One with several values is that of a sweep: left out."""
    try:
        words = shlex.split(command)
    except ValueError:
        return {}
    found = {}
    parser = OverridesParser.create()
    for word in words:
        if not OPTION.match(word):
            continue
        try:
            (override,) = parser.parse_overrides([word])
        except HydraException:
            continue
        if not override.is_sweep_override():
            found[override.key_or_group] = RecordedOption(word, override.value())
    return found
