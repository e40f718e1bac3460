"""The pipeline of an evaluation: plan the missing runs, run them in workers, record the events."""

from contextlib import closing
from functools import partial
from pathlib import Path

from conf.errors import bad_input
from conf.hardware import resolve_gpu
from conf.models import ORIGINAL
from conf.schema.commands import QUICK, EvaluateConfig
from conf.schema.load import GpuConfig, gpus_of
from conf.terminal import say, table_console
from evaluate.accuracy.judging import engine_findings
from evaluate.accuracy.preflight import check_limits, check_text
from evaluate.measure.engine_memory import EngineMemory
from evaluate.measure.environment import environment
from evaluate.measure.progress import ProgressDisplay
from evaluate.measure.rates.known import rates, with_links
from evaluate.measure.roofline import Rates
from evaluate.measure.targets import Target, first_folder, real_folders, targets
from evaluate.measure.traffic.resolving import read_traffic, with_traffic
from evaluate.measure.traffic.times import say_unused
from evaluate.plan import Plan, Planner, inspect
from evaluate.record import EventRecorder
from evaluate.report.show.terminal_tables import (
    accuracy_table,
    profile_tables,
    speed_table,
    worst_table,
)
from evaluate.results.host_time import busy_share
from evaluate.results.recorder import NARROWEST_TABLE, Recorder, results_home
from evaluate.results.rows import Row, SkippedRow, SpeedRow, current
from evaluate.run import Group, Turn, turns_of
from serve.checks import check, support_of, verify_together
from serve.engine.launch import options
from serve.engine.splits import check_splits


def evaluate(config: EvaluateConfig) -> list[Row]:
    """Measures all targets; one failure does not stop the others. Returns their rows, including
    those of earlier evaluations."""
    recorder = Recorder(config, environment(config.gpu, config.engine))
    uses_traffic = any(scenario.from_traffic for scenario in config.scenario.values())
    conversations = read_traffic(config.traffic) if uses_traffic else []
    all_targets = targets(config)
    if uses_traffic:
        say_unused(config, conversations)
        config = with_traffic(config, conversations, first_folder(all_targets))
        recorder.use(config, environment(config.gpu, config.engine))
    if config.accuracy.kind == QUICK:
        max_model_len = config.engine.max_model_len
        check_limits(config.accuracy, first_folder(all_targets), max_model_len)
    plans = _plan_targets(config, all_targets, recorder)
    if any(plan.judges for plan in plans):
        check_text(config.accuracy, first_folder(all_targets))
    limits = _hardware_limits(config)
    turn_groups = turns_of(config, plans)
    runs = sum(plan.runs for plan in plans)
    table = partial(speed_table, max_spread=config.max_spread)
    originals = [plan.view for plan in plans if plan.name == ORIGINAL]
    with ProgressDisplay(runs, len(turn_groups), table) as display:
        display.rows = list(recorder.rows)
        events = EventRecorder(recorder, display, limits, next(iter(originals), None))
        for turns in turn_groups:
            _measure(config, turns, events)
        for plan in plans:
            if plan.accuracy.kind != "none" and plan.has_view:
                with events.guarded(plan):
                    events.judge(plan)
        for plan in plans:
            events.hold_to_gate(plan)
    _show(recorder)
    recorder.close()
    return recorder.rows


def _hardware_limits(config: EvaluateConfig) -> Rates | None:
    """Bandwidth and rates of the hardware, measured once; None for a server elsewhere."""
    if config.engine.url is not None:
        return None
    gpu, options = resolve_gpu(config.gpu), config.engine.options
    return with_links(rates(gpu, gpus_of(options)), gpu, options)


def _plan_targets(
    config: EvaluateConfig, all_targets: list[Target], recorder: Recorder
) -> list[Plan]:
    """The plan of every target that can be measured. The failures of others are recorded."""
    original = first_folder(all_targets)
    planner = Planner(config, recorder.environment, recorder.before)
    verify_together(real_folders(all_targets))
    plans = []
    for target in all_targets:
        try:
            folder = checked_folder(target, original, config)
            plan = planner.plan(inspect(target, folder))
            if plan.runs:
                check_memory(folder, config)
            _record_skipped(plan, recorder)
        except Exception as error:
            recorder.fail(target.name, "", "", error)
            continue
        plans.append(plan)
        recorder.rows += plan.recorded
    if recorder.rows:
        count = len(recorder.rows)
        say(f"{recorder.path}: {count} runs are there already (force=true measures them again)")
    return plans


def checked_folder(target: Target, original: Path, config: EvaluateConfig) -> Path:
    """The target's folder. Raises if no engine on this machine can load it."""
    if target.problem is not None:
        raise target.problem
    assert target.folder is not None
    if not target.dummy:
        check(target.folder, original, config.engine)
    if config.engine.starts_vllm:
        supported = support_of(target.folder, GpuConfig())
        if not supported.runs:
            raise bad_input(f"{supported.summary}; measure {supported.instead} instead")
        check_splits(target.folder, config.engine.options)
    return target.folder


def check_memory(folder: Path, config: EvaluateConfig) -> None:
    """Raises where vLLM would load weights that this machine's memory does not hold now."""
    if config.engine.starts_vllm:
        EngineMemory(config.engine, options(config.engine)).check_host(folder)


def _record_skipped(plan: Plan, recorder: Recorder) -> None:
    for scenario, reason in plan.skipped.items():
        say(f"{plan.name}: scenario={scenario} is skipped, {reason}")
        key = plan.keys[scenario]
        if not any(isinstance(row, SkippedRow) and row.key == key for row in recorder.before):
            recorder.note_row(SkippedRow, plan.name, scenario, key, reason=reason)


def _measure(config: EvaluateConfig, turns: list[Turn], events: EventRecorder) -> None:
    """Loads the engines of these turns together, then measures one at a time."""
    with Group(config, turns, results_home(config)) as group:
        for place, turn in enumerate(turns):
            with events.guarded(turn.plan):
                group.load(place, events.display.loading)
        group.wait_until_loaded()
        for place in group.workers:
            with events.guarded(turns[place].plan), closing(group.measure(place)) as sent:
                events.record_events(turns[place], sent)


def _show(recorder: Recorder) -> None:
    """Prints the result tables, and the checkpoints on which engines disagree."""
    screen = table_console(NARROWEST_TABLE)
    judged = [accuracy_table(recorder.rows), worst_table(recorder.rows)]
    if any(row.kind == "speed" for row in recorder.rows):
        screen.print(speed_table(recorder.rows, recorder.config.max_spread))
    for finding in engine_findings([*current(recorder.before), *recorder.rows]):
        say(f"finding: {finding}")
    busy = busy_share(row for row in recorder.rows if isinstance(row, SpeedRow) and not row.invalid)
    if busy is not None:
        say(
            f"finding: other processes took {busy:.0%} of the cores' time during these runs, which "
            "may have slowed them; measure again on a quiet machine with force=true"
        )
    for table in [*profile_tables(recorder.rows), *filter(None, judged)]:
        screen.print(table)
