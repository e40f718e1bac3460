"""The commands that serve a candidate, and that measure what a decision lacks."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from conf import ROOT
from conf.files import strict_yaml
from conf.hardware import CPU
from conf.models import ORIGINAL
from conf.override_text import command_text, option_text
from conf.schema.kernels import KERNELS_OPTION, VLLM
from conf.schema.load import KV_CACHE_SIZE, SIDE_BY_SIDE, EngineOptions
from conf.terminal import listed
from evaluate.report.decide.comparison import CandidateNames, ComparisonGroup, Entry, Workload
from evaluate.report.decide.mix import shares_of
from evaluate.report.decide.recorded_options import (
    has_traffic,
    measured_checkpoints,
    model_options,
    served_checkpoint,
    traffic_options,
    workload_options,
)
from evaluate.report.decide.rules.facts import SetupFacts, Shares
from evaluate.results.cells import PREFIX_OPTION, kernels_of
from evaluate.results.rows import Row

# Set for a measurement or by the machine; a server chooses its own values.
NOT_HANDED_ON = ("dtype", "enforce_eager", "max_model_len", PREFIX_OPTION)
SECOND_LAYOUT = "second_layout"

CACHE = option_text(f"engine.{PREFIX_OPTION}", True)
SECOND = "starts=2"

Gaps = dict[tuple[str, ...], list[str]]
"""The candidates by the scenarios that they lack."""


@dataclass(frozen=True)
class Missing:
    """Something that was not measured, and the command that measures it."""

    what: str
    command: str


def served_options(measured: EngineOptions) -> EngineOptions:
    """The engine options of a measurement that a server uses, too."""
    # A server has the GPU to itself.
    left_out = {*NOT_HANDED_ON, *(SIDE_BY_SIDE if KV_CACHE_SIZE in measured else ())}
    return {name: value for name, value in measured.items() if name not in left_out}


def rows_of(group: ComparisonGroup) -> dict[str, Row]:
    """The first row of each candidate."""
    rows: dict[str, Row] = {}
    for workload in group.workloads:
        for entry in workload.entries:
            rows.setdefault(entry.candidate, entry.row)
    return rows


def serve_commands(row: Row) -> list[str]:
    """The commands that serve a row's checkpoint with the options of its measurement. Random
    weights are no checkpoint, so that one is quantized first."""
    commands = []
    if row.environment.has_random_weights and row.checkpoint != ORIGINAL:
        recipe = option_text("recipe", row.checkpoint)
        commands.append(command_text("quantize", *model_options(row), recipe))
    options = [*served_checkpoint(row), *_engine_options(row)]
    commands.append(command_text("serve", *options))
    return commands


def missing_of(
    group: ComparisonGroup, facts: SetupFacts, mix: dict[str, float], results: str
) -> list[Missing]:
    """What the decision for a mix lacks: scenarios, accuracy, runs, and second starts."""
    shares, unmeasured = shares_of(group, mix) if group.workloads else ({}, [])
    missing = [
        Missing(f"{name}, a scenario of the mix", _evaluate_command(group, [name], [], results))
        for name in unmeasured
    ]
    missing += _missing_accuracy(group, facts, results)
    missing += _missing_runs(group, facts, shares, results)
    commands = {entry.command for entry in missing}
    return missing + [
        Missing(f"a second start of {listed(ties)}, which would very likely decide", measured_by)
        for ties, measured_by in second_starts(group, results)
        if measured_by not in commands
    ]


def _missing_accuracy(group: ComparisonGroup, facts: SetupFacts, results: str) -> list[Missing]:
    unjudged = [candidate.name for candidate in facts.candidates if not candidate.judged]
    if not unjudged:
        return []
    return [Missing(f"the accuracy of {listed(unjudged)}", accuracy_command(group, results))]


def accuracy_command(group: ComparisonGroup, results: str) -> str:
    """The command that judges the checkpoints of a model, or all published ones where those that
    were measured had random weights."""
    options = [*model_options(group.rows[0]), "scenario=none", "accuracy=quick"]
    trained = [row for row in rows_of(group).values() if not row.environment.has_random_weights]
    options += measured_checkpoints(trained)
    if all(ran_on_vllms_kernels(row) for row in group.rows):
        options.append(f"engine.{KERNELS_OPTION}={VLLM}")
    return command_text("evaluate", *options, results_option(results))


def _missing_runs(
    group: ComparisonGroup, facts: SetupFacts, shares: Shares, results: str
) -> list[Missing]:
    """Candidates that cannot be ranked in some workloads of the mix, with commands. A candidate
    that was measured there needs another start."""
    rows = rows_of(group)
    measure_of = {workload.name: workload.measure for workload in group.workloads}
    gaps: dict[tuple[str, ...], Gaps] = defaultdict(lambda: defaultdict(list))
    for candidate, own_gaps in zip(facts.candidates, gaps_of(group, facts), strict=True):
        lacking = {name: options for name, options in own_gaps.items() if name in shares}
        if lacking:
            further = dict.fromkeys(option for options in lacking.values() for option in options)
            more = (*_engine_options(rows[candidate.name]), *further)
            measures = tuple(dict.fromkeys(measure_of[name] for name in lacking))
            gaps[more][measures].append(candidate.name)
    return [
        _missing(group, rows, together, more, results)
        for more, all_gaps in gaps.items()
        for together in _by_command(rows, all_gaps)
    ]


def gaps_of(group: ComparisonGroup, facts: SetupFacts) -> list[dict[str, list[str]]]:
    """For each candidate of the facts: the workloads in which it has no rank and which a command
    can measure, with the further options of that command. What was measured there needs a second
    start, as the first was."""
    rows, names = rows_of(group), CandidateNames(group.rows)
    plain = {name: names.of(row) for name, row in rows.items()}

    def is_fillable(name: str, workload: Workload) -> bool:
        """A second measurement of a candidate under one workload has a name of its own there (with
        the prefix cache, in another session). Further workloads count for the plain name, so no
        command fills the gaps of the other one."""
        if plain[name] == name:
            return True
        return plain[name] not in {*rows, *(plain[entry.candidate] for entry in workload.entries)}

    gaps: list[dict[str, list[str]]] = [{} for _ in facts.candidates]
    for workload, known in zip(group.workloads, facts.workloads, strict=True):
        for place, candidate in enumerate(facts.candidates):
            if known.entry(place) is not None or candidate.name not in rows:
                continue  # those of capacity searches alone have no rows here
            entry = workload.of(candidate.name)
            if entry is not None:
                gaps[place][workload.name] = [*([CACHE] if entry.has_cache else []), SECOND]
            elif is_fillable(candidate.name, workload):
                gaps[place][workload.name] = []
    return gaps


def _by_command(rows: dict[str, Row], gaps: Gaps) -> list[Gaps]:
    """The gaps that one command fills. Published checkpoints have one together, because a command
    measures all of them."""
    options = _weights([rows[name] for names in gaps.values() for name in names])
    is_named = any(option.startswith(("checkpoints=", "recipes=")) for option in options)
    return [{measures: names} for measures, names in gaps.items()] if is_named else [gaps]


def _missing(
    group: ComparisonGroup, rows: dict[str, Row], gaps: Gaps, more: tuple[str, ...], results: str
) -> Missing:
    what = [f"{listed(names)} in {listed([*measures])}" for measures, names in gaps.items()]
    lacking = {measure for measures in gaps for measure in measures}
    measures = [one.measure for one in group.workloads if one.measure in lacking]
    measured = [rows[name] for names in gaps.values() for name in names]
    return Missing("; ".join(what), _evaluate_command(group, measures, measured, results, *more))


def second_starts(group: ComparisonGroup, results: str) -> list[tuple[list[str], str]]:
    """Ties with the original that another start would very likely decide, with the command. The
    ties of each choice of kernels have one of their own, and those with a prefix cache."""
    by_options: dict[tuple[str, bool], list[Entry]] = defaultdict(list)
    for workload in group.workloads:
        for entry in workload.entries:
            baseline = workload.of(entry.baseline)
            if entry.rank is None or baseline is None or baseline.rank is None:
                continue  # too noisy: another start would not decide
            if entry.ratio is not None and entry.ratio.second_start_decides:
                by_options[kernels_of(entry.row), entry.has_cache].append(entry)
    undecided = []
    for (_, has_cache), entries in by_options.items():
        measures = list(dict.fromkeys(entry.workload.measure for entry in entries))
        rows: list[Row] = [entry.row for entry in entries]
        ties = [f"{entry.checkpoint} in {entry.workload.measure}" for entry in entries]
        # Traffic beside these scenarios had turned it on, and a second start needs it again.
        cache = [CACHE] if has_cache else []
        more = (*_engine_options(rows[0]), *cache, SECOND)
        undecided.append((ties, _evaluate_command(group, measures, rows, results, *more)))
    return undecided


def _evaluate_command(
    group: ComparisonGroup, measures: Sequence[str], rows: list[Row], results: str, *more: str
) -> str:
    """The command that measures the rows' checkpoints in scenarios; without rows, all published
    checkpoints."""
    scenarios = list(dict.fromkeys(scenario_of(measure) for measure in measures))
    options = [*evaluate_options(group), option_text("scenario", scenarios)]
    options += [*_workload_options(group, measures), *_weights(rows), *more]
    return command_text("evaluate", *options, results_option(results))


def _workload_options(group: ComparisonGroup, measures: Sequence[str]) -> list[str]:
    """What makes the scenarios those that were measured."""
    rows = [w.entries[0].row for w in group.workloads if w.measure in measures and w.entries]
    return list(dict.fromkeys(option for row in rows for option in workload_options(row)))


def evaluate_options(group: ComparisonGroup) -> list[str]:
    return [*model_options(group.rows[0]), option_text("engine", group.engine)]


def candidate_options(rows: list[Row]) -> list[str]:
    """The options that measure the rows' checkpoints as the first of them was measured."""
    return [*_weights(rows), *_engine_options(rows[0])]


def _weights(rows: list[Row]) -> list[str]:
    """Trained checkpoints that were published need no option: all of them are measured."""
    traffic = traffic_options(rows[0]) if rows and has_traffic(rows[0]) else []
    if not rows or not rows[0].environment.has_random_weights:
        return [*measured_checkpoints(rows), *traffic]
    recipes = dict.fromkeys(row.checkpoint for row in rows if row.checkpoint != ORIGINAL)
    return ["weights=random", option_text("recipes", list(recipes)), *traffic]


def results_option(name: str) -> str:
    """The option that adds to a results file; a packed one is only read."""
    return option_text("results", name.removesuffix(".gz"))


def _engine_options(row: Row) -> list[str]:
    """The options of a measurement that a command repeats."""
    options = served_options(row.environment.engine_options)
    if ran_on_vllms_kernels(row):
        options = {**options, KERNELS_OPTION: VLLM}  # which is not the default
    names = {SECOND_LAYOUT: f"{KERNELS_OPTION}.{SECOND_LAYOUT}"}
    return [
        option_text(f"engine.{names.get(name, name)}", value) for name, value in options.items()
    ]


def ran_on_vllms_kernels(row: Row) -> bool:
    """Whether a GPU ran it on vLLM's own kernels, where ours could have been used."""
    environment = row.environment
    has_gpu = environment.device not in (None, CPU)
    is_vllm = (environment.engine or "").startswith("vllm")
    return has_gpu and is_vllm and kernels_of(row) == VLLM


def scenario_of(measure: str) -> str:
    """The name after `scenario=` that runs a workload: a file may hold several workloads. A team's
    own file is not known here, so a workload that is in none of ours stands for itself."""
    contents = _scenario_files()
    if measure in contents:
        return measure
    return next((name for name, content in contents.items() if measure in content), measure)


@cache
def _scenario_files() -> dict[str, dict[str, Any]]:
    files = sorted((ROOT / "conf" / "scenario").glob("*.yaml"))
    return {path.stem: strict_yaml.read(path).content or {} for path in files}
