"""The environments and commands of the rows, so that the measurements can be repeated."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from conf.files.json_files import JsonObject
from conf.models import MADE_UP
from evaluate.report.decide.comparison import grouped
from evaluate.results.rows import Row

OF_CHECKPOINT = ("checkpoint_sha256", "quantization_sha256", "weights", "pruned", MADE_UP)
OF_COMMAND = ("search",)
ORDER = (
    *("device", "driver", "power_limit_w", "max_sm_clock_mhz", "gpu_memory_gib", "cpu", "cores"),
    *("python", "engine", "versions", "engine_options", "variables", "commit"),
)
COMMAND = "command"


@dataclass
class HowMeasured:
    """The environment and commands of one comparison group."""

    title: str
    facts: dict[str, str]
    """All values of each field of the environment."""
    commands: list[str]
    """The command lines, without duplicates."""


def how_measured(rows: Sequence[Row]) -> list[HowMeasured]:
    groups = []
    for group in grouped([row for row in rows if row.environment.names]):
        values: dict[str, list[str]] = defaultdict(list)
        for environment in _different(group.rows):
            for name, value in environment.items():
                text = _text(value)
                if text and text not in values[name]:
                    values[name].append(text)
        times = sorted(row.time for row in group.rows)
        commands = values.pop(COMMAND, [])
        names = [name for name in (*ORDER, *sorted(set(values) - set(ORDER))) if values.get(name)]
        facts = {name.replace("_", " "): "; ".join(values[name]) for name in names}
        facts["measured"] = f"{times[0]} to {times[-1]}, {len(group.rows)} runs"
        groups.append(HowMeasured(group.title, facts, commands))
    return groups


def _different(rows: list[Row]) -> list[JsonObject]:
    """The different environments, without the fields that describe a checkpoint or a command."""
    environments = {}
    for row in rows:
        content = row.environment.content()
        left_out = (*OF_CHECKPOINT, *OF_COMMAND)
        shared = {name: value for name, value in content.items() if name not in left_out}
        environments[json.dumps(shared, sort_keys=True)] = shared
    return list(environments.values())


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={entry}" for name, entry in value.items())
    return str(value)
