"""Judges settings that change answers: the same checkpoint's text, read with and without them.

The existing measurement (accuracy=quick) compares a checkpoint with the original. Here both sides
are the same checkpoint, so the verdict is on the settings alone. It is printed and stands in the
settings file; results.jsonl has no row of it.
"""

from contextlib import closing
from dataclasses import replace

from conf.schema.commands import AccuracyConfig
from conf.schema.load import EngineConfig
from evaluate.accuracy.judging import gate, judged_values
from evaluate.accuracy.verdicts import BROKEN, LOSS
from evaluate.measure.environment import environment
from evaluate.measure.events import MeasureFailed, WindowStarted
from evaluate.measure.progress import ProgressDisplay
from evaluate.plan import Plan, Planner
from evaluate.results.recorder import Recorder
from evaluate.run import Group, Turn
from evaluate.tune.target import TunedCheckpoint
from evaluate.tune.trials import Judgement

IN_PROCESS = "vllm"  # a server gives no log-probabilities of a prompt


def judge_answers(
    tuned: TunedCheckpoint,
    engines: list[EngineConfig],
    accuracy: AccuracyConfig,
    recorder: Recorder,
    display: ProgressDisplay,
) -> Judgement:
    """Whether the second engine answers as well as the first."""
    try:
        reference, changed = (
            _read_text(tuned, engine, accuracy, recorder, display) for engine in engines
        )
        judged = judged_values(changed.view, reference.view, reference.folder, accuracy.seed)
    except Exception as error:
        return Judgement(False, f"accuracy could not be judged: {error}")
    values = judged.values
    text = (
        f"accuracy: {values.verdict}, {values.recovery or 0:.4f} of the quality with default "
        f"settings, divergence {values.divergence_mean or 0:.4f}"
    )
    failed = gate(values, accuracy)
    is_good = not judged.invalid and failed is None and values.verdict not in (LOSS, BROKEN)
    return Judgement(is_good, text)


def _read_text(
    tuned: TunedCheckpoint,
    engine: EngineConfig,
    accuracy: AccuracyConfig,
    recorder: Recorder,
    display: ProgressDisplay,
) -> Plan:
    """Has an engine write its view of the text, where there is none; returns the plan."""
    engine = replace(engine, kind=IN_PROCESS)
    config = replace(tuned.config, engine=engine, accuracy=accuracy, scenario={}, starts=1)
    planner = Planner(config, environment(config.gpu, engine), recorder.before)
    plan = planner.plan(tuned.inspected)
    if plan.has_view:
        return plan
    plan = replace(plan, judged=None)  # a verdict in the results is no view
    with Group(config, [Turn(plan, 0)], recorder.path) as group:
        group.load(0, display.loading)
        with closing(group.measure(0)) as events:
            for event in events:
                if isinstance(event, WindowStarted):
                    display.judging(plan.name, event.window, event.windows)
                elif isinstance(event, MeasureFailed):
                    raise event.failure.error
    return plan
