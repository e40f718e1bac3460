"""What a report shows: every file read, who is compared with whom settled, and decided."""

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from conf.errors import bad_input, unknown
from conf.models import MADE_UP
from conf.report_schema import ReportConfig
from evaluate.report.charts import charts
from evaluate.report.drawing import Chart, Names
from evaluate.report.grounds import Ground, grounds
from evaluate.report.mix import choose_mix
from evaluate.report.notes import findings, left_out, notes
from evaluate.report.quality import Qualities, qualities
from evaluate.report.ranking import rank_all
from evaluate.report.recommend import Choice, choose
from evaluate.report.sets import Sets, make_sets
from evaluate.report.setting import Setting, settings
from evaluate.results import Row, current, read


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
    rows, faults, seen = _rows([Path(name).expanduser() for name in config.results])
    if not rows:
        raise bad_input(_nothing(config, faults))
    found = grounds(rows)
    rank_all(found, config.max_spread)
    judged = qualities(rows)
    _check_mix(config, found)
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
        notes=seen + notes(found),
        findings=findings(found, rows),
        left_out=left_out(rows, found),
    )


def _check_mix(config: ReportConfig, found: list[Ground]) -> None:
    known = {
        name for ground in found for load in ground.loads for name in (load.name, load.measure)
    }
    for name in config.mix if found else []:
        if name not in known:
            raise unknown(f"mix.{name}", name, known)


def _nothing(config: ReportConfig, faults: list[str]) -> str:
    files = ", ".join(config.results)
    reason = f" ({faults[0]})" if faults else ""
    return f"results={files}: there are no results in it{reason}"


def _rows(files: list[Path]) -> tuple[list[Row], list[str], list[str]]:
    """The rows that count of all files together. A row that stands in two files counts once;
    another session under the same key stays apart from the first."""
    rows: list[Row] = []
    faults: list[str] = []
    for path in files:
        if not path.is_file():
            raise bad_input(f"results={path}: there is no such file")
        found, wrong = read(path)
        rows += found
        faults += wrong
    marks = {(r.key, r.kind, r.repeat, r.generation, r.time, _figure(r)): r for r in rows}
    notes = []
    if len(marks) < len(rows):
        copies = len(rows) - len(marks)
        notes.append(f"{copies} rows stand there more than once and count once")
    counting = current(list(marks.values()))
    if len(counting) < len(marks):
        older = len(marks) - len(counting)
        notes.append(f"{older} rows were measured again (force=true) and no longer count")
    newest = _newest_weights(counting)
    if len(newest) < len(counting):
        older = len(counting) - len(newest)
        notes.append(f"{older} rows ran on weights made up in an older way and do not count")
    counting = newest
    sessions = _keep_sessions_apart(counting)
    if sessions:
        notes.append(
            f"{sessions} cells were measured in more than one session; each session is shown apart"
        )
    return counting, faults, notes


def _figure(row: Row) -> str:
    """One of its values, which no other run has to the last digit."""
    return str(next((v for v in row.values.values() if isinstance(v, float)), row.reason))


def _newest_weights(rows: list[Row]) -> list[Row]:
    """Without what ran on made-up weights of an older format than others of its model did there."""

    def place(row: Row) -> tuple[str, ...]:
        return row.model, *(str(row.environment.get(name)) for name in ("device", "engine"))

    newest: dict[tuple[str, ...], int] = defaultdict(int)
    for row in rows:
        newest[place(row)] = max(newest[place(row)], row.environment.get(MADE_UP, 0))
    return [
        row
        for row in rows
        if row.environment.get("weights") != "random"
        or row.environment.get(MADE_UP, 0) == newest[place(row)]
    ]


def _keep_sessions_apart(rows: list[Row]) -> int:
    """Gives a repeat that is there already a key of its own, with those that follow it. One that
    was run again because it was invalid is no other session."""
    seen: dict[tuple[str, int], int] = defaultdict(int)
    again = set()
    for row in rows:
        if row.kind != "speed" or row.invalid:
            continue
        session = seen[row.key, row.repeat]
        seen[row.key, row.repeat] += 1
        if session:
            again.add(row.key)
            row.key = f"{row.key} session {session + 1}"
    return len(again)
