"""Where and how the rows were measured, so that anyone can do it again."""

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from conf.models import MADE_UP
from evaluate.report.decide.comparable import setups
from evaluate.results.rows import Row

OF_ONE = ("checkpoint_sha256", "quantization_sha256", "weights", "pruned", MADE_UP)
ORDER = (
    *("device", "driver", "power_limit_w", "max_sm_clock_mhz", "gpu_memory_gib", "cpu", "cores"),
    *("python", "engine", "versions", "engine_options", "variables", "commit"),
)
COMMAND = "command"


@dataclass
class Setting:
    """Where and how one ground was measured."""

    title: str
    facts: dict[str, str]
    """What all its rows share, and every value of what differs."""
    commands: list[str]
    """What was typed, each once."""


def settings(rows: list[Row]) -> list[Setting]:
    found = []
    for ground in setups([row for row in rows if row.environment.names]):
        values: dict[str, list[str]] = defaultdict(list)
        for environment in _different(ground.rows):
            for name, value in environment.items():
                words = _words(value)
                if words and words not in values[name]:
                    values[name].append(words)
        times = sorted(row.time for row in ground.rows)
        commands = values.pop(COMMAND, [])
        names = [name for name in (*ORDER, *sorted(set(values) - set(ORDER))) if values.get(name)]
        facts = {name.replace("_", " "): "; ".join(values[name]) for name in names}
        facts["measured"] = f"{times[0]} to {times[-1]}, {len(ground.rows)} runs"
        found.append(Setting(ground.title, facts, commands))
    return found


def _different(rows: list[Row]) -> list[dict[str, Any]]:
    """Each environment once, without what belongs to a single checkpoint."""
    found = {}
    for row in rows:
        known = row.environment.content()
        shared = {name: value for name, value in known.items() if name not in OF_ONE}
        found[json.dumps(shared, sort_keys=True)] = shared
    return list(found.values())


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={part}" for name, part in value.items())
    return str(value)
