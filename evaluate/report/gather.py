"""What a report shows: every file read, who is compared with whom settled, and decided."""

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from conf.errors import bad_input, unknown
from conf.models import MADE_UP, ORIGINAL
from conf.report_schema import ReportConfig
from evaluate.judging import engine_findings
from evaluate.report.charts import charts
from evaluate.report.curves import BATCH, CONTEXT, crossing, curves
from evaluate.report.drawing import Chart, Names
from evaluate.report.grounds import Entry, Ground, Load, grounds
from evaluate.report.kernels import kernel_findings
from evaluate.report.mix import choose_mix
from evaluate.report.quality import Qualities, qualities
from evaluate.report.ranking import rank_all
from evaluate.report.recommend import Choice, choose
from evaluate.report.sets import Sets, make_sets
from evaluate.report.setting import Setting, settings
from evaluate.results import Row, current, read

MOST_LISTED = 200
MOST_FINDINGS = 12


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
    rows, faults, notes = _rows([Path(name).expanduser() for name in config.results])
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
        notes=notes + _notes(found),
        findings=_findings(found, rows),
        left_out=_left_out(rows, found),
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
    sessions = _keep_sessions_apart(counting)
    if sessions:
        notes.append(
            f"{sessions} cells were measured in more than one session; each session is shown apart"
        )
    return counting, faults, notes


def _figure(row: Row) -> str:
    """One of its values, which no other run has to the last digit."""
    return str(next((v for v in row.values.values() if isinstance(v, float)), row.reason))


def _keep_sessions_apart(rows: list[Row]) -> int:
    """Gives a repeat that is there already a key of its own, with those that follow it."""
    seen: dict[tuple[str, int], int] = defaultdict(int)
    again = set()
    for row in rows:
        if row.kind != "speed":
            continue
        session = seen[row.key, row.repeat]
        seen[row.key, row.repeat] += 1
        if session:
            again.add(row.key)
            row.key = f"{row.key} session {session + 1}"
    return len(again)


def _notes(found: list[Ground]) -> list[str]:
    notes = []
    if len(found) > 1:
        notes.append(
            f"{len(found)} setups (model, device, engine, versions) are in these results; nothing "
            "is ranked or averaged across them"
        )
    for ground in found:
        notes += _weights_notes(ground)
        without = [load.name for load in ground.loads if _has_nothing_beside_it(load)]
        if without:
            names = ", ".join(without)
            notes.append(f"{ground.title}: no original to compare with, or one run only: {names}")
        notes.append(_noise_note(ground))
    return notes


def _weights_notes(ground: Ground) -> list[str]:
    made_up = [row for row in ground.rows if row.environment.get("weights") == "random"]
    if not made_up:
        return []
    if ground.engine != "transformers" and any(MADE_UP not in row.environment for row in made_up):
        return [
            f"{ground.title}: random weights that vLLM made up, mostly zeros where they are "
            "quantized. They take less power, which flatters long prompts and large batches; "
            "evaluate makes up others by now"
        ]
    return [
        f"{ground.title}: random weights, spread as trained ones are, and as fast; accuracy comes "
        "from checkpoints of the same recipe where it is shown"
    ]


def _has_nothing_beside_it(load: Load) -> bool:
    """Whether candidates were measured that nothing can be said of."""
    candidates = [entry for entry in load.entries if entry.checkpoint != ORIGINAL]
    return bool(candidates) and all(entry.ratio is None for entry in candidates)


def _noise_note(ground: Ground) -> str:
    noise = ground.noise
    if not noise.starts:
        return (
            f"{ground.title}: intervals are of repeats within one start of the engine; how much "
            "starts differ was not measured (two recipes that are the same to the engine show it)"
        )
    kinds = f"{noise.kinds} {'kind' if noise.kinds == 1 else 'kinds'}"
    return (
        f"{ground.title}: what is the same to the engine differs by {noise.usual:.1%} from start "
        f"to start (one deviation, in the middle of {len(noise.variances)} loads, by "
        f"{noise.starts} starts of {kinds}); all intervals between checkpoints contain what it "
        "does under their load"
    )


def _findings(found: list[Ground], rows: list[Row]) -> list[str]:
    said = {ground.title: _said_of(ground) for ground in found}
    told = [title for title, sentences in said.items() if sentences]
    words = engine_findings(rows)
    for title in told:
        words += [f"{title}: {one}" if len(told) > 1 else one for one in said[title]]
    words = list(dict.fromkeys(words))
    more = len(words) - MOST_FINDINGS
    return words[:MOST_FINDINGS] + ([f"and {more} more of the kind"] if more > 0 else [])


def _said_of(ground: Ground) -> list[str]:
    crossings = [crossing(curve) for axis in (BATCH, CONTEXT) for curve in curves(ground, axis)]
    return kernel_findings(ground) + [sentence for sentence in crossings if sentence]


def _outliers(entry: Entry) -> list[str]:
    summary = entry.cell.summary(entry.cell.ranked_by)
    if summary is None:
        return []
    values = entry.cell.values(entry.cell.ranked_by)
    return [
        f"{entry.candidate}, {entry.load.name}: outlier left out, {values[place]:.4g} s against a "
        f"median of {summary.median:.4g} s"
        for place in summary.outliers
    ]


def _left_out(rows: list[Row], found: list[Ground]) -> list[str]:
    """Invalid runs, outliers, failures and what was skipped; nothing vanishes without a word."""
    listed = []
    for row in rows:
        where = f"{row.model}, {row.checkpoint}" + (f", {row.measure}" if row.measure else "")
        if row.kind in ("speed", "accuracy") and row.invalid:
            listed.append(f"{where}, run {row.repeat + 1}: invalid, {'; '.join(row.invalid)}")
        elif row.kind in ("failed", "skipped"):
            listed.append(f"{where}: {row.kind}, {row.reason}")
    for ground in found:
        for load in ground.loads:
            for entry in load.entries:
                listed += [f"{ground.model}, {words}" for words in _outliers(entry)]
    listed = list(dict.fromkeys(listed))
    more = len(listed) - MOST_LISTED
    return listed[:MOST_LISTED] + ([f"and {more} more"] if more > 0 else [])
