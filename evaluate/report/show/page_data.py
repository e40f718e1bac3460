"""The data of the page's script: records and charts, with the setups that they belong to."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from conf.files.json_files import JsonObject
from conf.schema.report import ReportConfig
from evaluate.report.contents import Report
from evaluate.report.decide.comparison import ComparisonGroup
from evaluate.report.decide.decision import Answer
from evaluate.report.decide.rules.misses import TEXTS
from evaluate.report.decide.workload_text import workload_text
from evaluate.report.show.charts.drawing import CELLS
from evaluate.report.show.records import Record
from evaluate.report.show.what_if.data import what_if

SHOWN_LINES = 250  # of a table, before the reader asks for the rest
DIGITS = 5
# The fields of a cell that charts use; the table has the rest.
DRAWN = (
    *("scenario", "candidate", "speedup", "speedup_low", "speedup_high", "differs"),
    *("latency_s", "output_tok_s", "latencies", "recovery", "verdict"),
)


def setups_of(record: Record, groups: list[ComparisonGroup]) -> list[int] | None:
    """The indices of the setups that a record is shown for; None for all of them."""
    places = [place for place, group in enumerate(groups) if record.belongs_to(group)]
    return places if places and len(places) < len(groups) else None


def _opening(report: Report) -> int:
    """The setup at which the page opens: the first with an answer."""
    has_answer = [answer.overall.candidate is not None for answer in report.answers]
    return has_answer.index(True) if any(has_answer) else 0


def page_data(report: Report) -> str:
    """The data as JSON that cannot close its script element."""
    content = {
        "shownLines": SHOWN_LINES,
        "opening": _opening(report),
        "setups": [asdict(_setup(group)) for group in report.groups],
        "known": {"scenario": report.names.scenarios, "candidate": report.names.candidates},
        "sets": {
            name: _lines([_content(record, name, report.groups) for record in records])
            for name, records in report.sets.by_name().items()
        },
        "whatIf": [_what_if(report.config, answer) for answer in report.answers],
        "answers": [answer.overall.candidate for answer in report.answers],
        "missTexts": TEXTS,
        "charts": [
            {"name": c.name, "data": c.data, "spec": c.spec, "value": c.value}
            for c in report.charts
        ],
    }
    # Infinity and NaN are no JSON: the page's script could not read its data.
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def _lines(records: list[JsonObject]) -> dict[str, list[Any]]:
    """Records as lines of values: with the names of its fields, each would be twice as long."""
    fields = list(dict.fromkeys(name for record in records for name in record))
    lines = [[record.get(name) for name in fields] for record in records]
    return {"fields": fields, "lines": lines}


def _what_if(config: ReportConfig, answer: Answer) -> JsonObject | None:
    found = what_if(config, answer)
    return None if found is None else asdict(found)


@dataclass(frozen=True)
class PageSetup:
    """One setup, by the names that the page's script uses."""

    model: str
    gpu: str
    engine: str
    loads: dict[str, str]
    """The settings of each workload, as text."""
    candidates: list[str]


def _setup(group: ComparisonGroup) -> PageSetup:
    return PageSetup(
        model=group.model,
        gpu=group.device,
        engine=group.engine_title,
        loads={workload.name: workload_text(workload.settings) for workload in group.workloads},
        candidates=group.candidates,
    )


def _content(record: Record, name: str, groups: list[ComparisonGroup]) -> JsonObject:
    content: JsonObject = {
        key: short(value)
        for key, value in record.content().items()
        if name != CELLS or key in DRAWN
    }
    places = setups_of(record, groups)
    if places is not None:
        content["setups"] = [*places]
    return content


def short(value: Any) -> Any:
    """Rounds floats to fewer digits, to keep a page with thousands of records small."""
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
