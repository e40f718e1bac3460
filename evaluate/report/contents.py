"""Everything that a report shows, before it is written."""

from dataclasses import dataclass
from pathlib import Path

from conf.errors import bad_input
from conf.schema.report import ReportConfig, changed_options
from evaluate.report.decide.comparison import ComparisonGroup
from evaluate.report.decide.decision import Answer, decide
from evaluate.report.decide.quality import Qualities
from evaluate.report.show.charts.all_charts import charts
from evaluate.report.show.charts.drawing import Chart, Names
from evaluate.report.show.how_measured import HowMeasured, how_measured
from evaluate.report.show.notes import energy_notes, findings, judged_elsewhere, left_out, notes
from evaluate.report.show.record_sets import RecordSets, make_sets
from evaluate.report.show.row_records import AccuracyRecord, accuracy_records
from evaluate.results.merging import merged_rows
from evaluate.results.rows import Row


@dataclass
class Report:
    """The decision, and everything that is shown of the rows behind it."""

    config: ReportConfig
    rows: list[Row]
    groups: list[ComparisonGroup]
    answers: list[Answer]
    qualities: Qualities
    sets: RecordSets
    names: Names
    accuracy: list[AccuracyRecord]
    charts: list[Chart]
    how_measured: list[HowMeasured]
    faults: list[str]
    """Lines that could not be read, as file:line."""
    notes: list[str]
    """What a reader must know before trusting a figure."""
    findings: list[str]
    left_out: list[str]
    """Excluded, failed and skipped runs, with the reasons."""


def make_report(config: ReportConfig) -> Report:
    """Reads the files and decides. Writes nothing."""
    rows, faults, merging_notes = read_rows(config)
    decision = decide(rows, config)
    groups = decision.groups
    sets = make_sets(decision.answers, decision.qualities, rows)
    names = Names(
        candidates=list(
            dict.fromkeys(
                [
                    *(name for group in groups for name in group.candidates),
                    *(record.candidate for record in sets.rates),
                ]
            )
        ),
        scenarios=list(
            dict.fromkeys(workload.name for group in groups for workload in group.workloads)
        ),
    )
    return Report(
        config=config,
        rows=rows,
        groups=groups,
        answers=decision.answers,
        qualities=decision.qualities,
        sets=sets,
        names=names,
        accuracy=accuracy_records(rows),
        charts=charts(sets, names),
        how_measured=how_measured(rows),
        faults=faults,
        notes=[
            *_options_note(config),
            *merging_notes,
            *notes(groups, config.results),
            *energy_notes(groups, config.gpu),
            *judged_elsewhere(groups, decision.qualities),
        ],
        findings=findings(groups, rows),
        left_out=left_out(rows, groups),
    )


def read_rows(config: ReportConfig) -> tuple[list[Row], list[str], list[str]]:
    """The rows of the files, the lines that could not be read, and notes on merging them."""
    rows, faults, notes = merged_rows([Path(name).expanduser() for name in config.results])
    if not rows:
        raise bad_input(_no_rows(config, faults))
    return rows, faults, notes


def _options_note(config: ReportConfig) -> list[str]:
    options = changed_options(config)
    return [f"asked for: {', '.join(options)}"] if options else []


def _no_rows(config: ReportConfig, faults: list[str]) -> str:
    files = ", ".join(config.results)
    reason = f" ({faults[0]})" if faults else ""
    is_json = any(name.endswith(".json") for name in config.results)
    hint = "; give the .jsonl file that evaluate wrote" if is_json else ""
    return f"results={files}: there are no results in it{reason}{hint}"
