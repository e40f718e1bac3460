"""Where and how the rows were measured, so that anyone can do it again."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from conf.models import MADE_UP
from evaluate.report.decide.comparison import grouped
from evaluate.results.rows import Row

OF_ONE = ("checkpoint_sha256", "quantization_sha256", "weights", "pruned", MADE_UP)
ORDER = (
    *("device", "driver", "power_limit_w", "max_sm_clock_mhz", "gpu_memory_gib", "cpu", "cores"),
    *("python", "engine", "versions", "engine_options", "variables", "commit"),
)
COMMAND = "command"


@dataclass
class HowMeasured:
    """Where and how one comparison group was measured."""

    title: str
    facts: dict[str, str]
    """What all its rows share, and every value of what differs."""
    commands: list[str]
    """What was typed, each once."""


def how_measured(rows: Sequence[Row]) -> list[HowMeasured]:
    found = []
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
        found.append(HowMeasured(group.title, facts, commands))
    return found


def _different(rows: list[Row]) -> list[dict[str, Any]]:
    """Each environment once, without what belongs to a single checkpoint."""
    found = {}
    for row in rows:
        known = row.environment.content()
        shared = {name: value for name, value in known.items() if name not in OF_ONE}
        found[json.dumps(shared, sort_keys=True)] = shared
    return list(found.values())


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={part}" for name, part in value.items())
    return str(value)
