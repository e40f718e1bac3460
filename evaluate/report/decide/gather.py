"""What a report shows: every file read, who is compared with whom settled, and decided."""

from dataclasses import dataclass, field
from pathlib import Path

from conf.errors import bad_input
from conf.schema.report import ReportConfig, asked
from evaluate.report.decide.comparable import Ground, grounds
from evaluate.report.decide.mix import choose_mix
from evaluate.report.decide.quality import Qualities, qualities
from evaluate.report.decide.ranking import rank_all
from evaluate.report.decide.recommend import Choice, choose
from evaluate.report.show.charts.all_charts import charts
from evaluate.report.show.charts.drawing import Chart, Names
from evaluate.report.show.notes import findings, left_out, notes
from evaluate.report.show.sets import Sets, make_sets
from evaluate.report.show.setting import Setting, settings
from evaluate.results.merging import merged_rows
from evaluate.results.mix_check import check_mix
from evaluate.results.rows import Row


@dataclass
class Answer:
    """What to serve on one ground."""

    ground: Ground
    whole: Choice
    loads: list[Choice]


@dataclass
class Report:
    """Everything that a report shows, before it is written."""

    config: ReportConfig
    rows: list[Row]
    grounds: list[Ground]
    qualities: Qualities
    answers: list[Answer]
    sets: Sets
    names: Names
    charts: list[Chart]
    settings: list[Setting]
    """For each setup, where and how it was measured."""
    faults: list[str] = field(default_factory=list)
    """Lines that could not be read, as file:line."""
    notes: list[str] = field(default_factory=list)
    """What a reader must know before trusting a figure."""
    findings: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Runs that are in no average, and what failed or was skipped, with the reason."""


def make_report(config: ReportConfig) -> Report:
    """Reads the files and decides; nothing is written."""
    rows, faults, seen = merged_rows([Path(name).expanduser() for name in config.results])
    if not rows:
        raise bad_input(_nothing(config, faults))
    found = grounds(rows)
    rank_all(found, config.max_spread)
    judged = qualities(rows)
    workloads = [load for ground in found for load in ground.loads]
    if found:
        check_mix(config.mix, {name for load in workloads for name in (load.name, load.measure)})
    answers = [
        Answer(
            ground,
            choose_mix(ground, config.mix, config.targets, judged),
            [choose(load, config.targets, judged, ground.noise) for load in ground.loads],
        )
        for ground in found
    ]
    sets = make_sets(found, judged, rows)
    names = Names(
        candidates=list(dict.fromkeys(name for ground in found for name in ground.candidates)),
        scenarios=list(dict.fromkeys(load.name for ground in found for load in ground.loads)),
    )
    return Report(
        config=config,
        rows=rows,
        grounds=found,
        qualities=judged,
        answers=answers,
        sets=sets,
        names=names,
        charts=charts(sets, names),
        settings=settings(rows),
        faults=faults,
        notes=[*_asked_note(config), *seen, *notes(found, config.results)],
        findings=findings(found, rows),
        left_out=left_out(rows, found),
    )


def _asked_note(config: ReportConfig) -> list[str]:
    words = asked(config)
    return [f"asked for: {', '.join(words)}"] if words else []


def _nothing(config: ReportConfig, faults: list[str]) -> str:
    files = ", ".join(config.results)
    reason = f" ({faults[0]})" if faults else ""
    return f"results={files}: there are no results in it{reason}"
