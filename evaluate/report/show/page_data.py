"""What the page's script reads: records, charts, and which setup each of them belongs to."""

import json
from typing import Any

from evaluate.report.decide.comparable import Ground
from evaluate.report.decide.gather import Report
from evaluate.report.show.charts.drawing import CELLS, ENGINES, OPERATORS, PROFILES, SENSITIVITY
from evaluate.report.show.load_text import load_words
from evaluate.report.show.records import Record

SHOWN_LINES = 250  # of a table, at first; the rest on request
DIGITS = 5
ACCURACY = "accuracy"
# What the charts draw of a cell; its table has the rest.
DRAWN = (
    *("ground", "scenario", "candidate", "speedup", "speedup_low", "speedup_high", "differs"),
    *("latency_s", "output_tok_s", "latencies", "recovery", "verdict"),
)
# What ties a record to a setup, for records that do not name theirs.
TIES = {
    ACCURACY: ("model",),
    SENSITIVITY: ("model",),
    ENGINES: ("model", "gpu"),
    PROFILES: ("model", "engine"),
    OPERATORS: ("model", "engine"),
}


def setups_of(record: Record, name: str, grounds: list[Ground]) -> list[int] | None:
    """The places of the setups that a record of this set is shown for; none: for all of them."""
    if len(grounds) < 2:
        return None
    if "ground" in record:
        return [n for n, ground in enumerate(grounds) if ground.title == record["ground"]]
    wanted = {tie: record.get(tie) for tie in TIES.get(name, ())}
    places = []
    for place, ground in enumerate(grounds):
        facts = {"model": ground.model, "gpu": ground.device, "engine": ground.engine}
        if all(facts[tie] == value for tie, value in wanted.items()):
            places.append(place)
    return places if places and len(places) < len(grounds) else None


def page_data(report: Report) -> str:
    """As JSON that cannot end its own element."""
    content = {
        "shownLines": SHOWN_LINES,
        "setups": [_setup(ground) for ground in report.grounds],
        "known": {"scenario": report.names.scenarios, "candidate": report.names.candidates},
        "sets": {
            name: [_record(record, name, report.grounds) for record in records]
            for name, records in vars(report.sets).items()
        },
        "charts": [
            {"name": c.name, "data": c.data, "spec": c.spec, "value": c.value}
            for c in report.charts
        ],
    }
    return json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")


def _setup(ground: Ground) -> dict[str, Any]:
    return {
        "model": ground.model,
        "gpu": ground.device,
        "engine": ground.engine_title,
        "loads": {load.name: load_words(load.settings) for load in ground.loads},
        "candidates": ground.candidates,
    }


def _record(record: Record, name: str, grounds: list[Ground]) -> Record:
    found = {
        key: short(value)
        for key, value in record.items()
        if key != "ground" and (name != CELLS or key in DRAWN)
    }
    places = setups_of(record, name, grounds)
    return found | ({} if places is None else {"setups": places})


def short(value: Any) -> Any:
    """Fewer digits: a page of thousands of records stays small."""
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
