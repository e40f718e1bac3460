"""The story of a search: the checkpoint, the space, the trials, the settings file."""

from pathlib import Path

from conf.hardware import resolve_gpu
from conf.override_text import command_text, option_text
from conf.schema.commands import QUICK
from conf.schema.load import gpus_of
from conf.schema.tune import TuneConfig
from conf.terminal import say, table_console
from evaluate.accuracy.preflight import check_limits, check_text
from evaluate.measure.environment import environment
from evaluate.measure.rates.known import rates
from evaluate.results.cells import cells
from evaluate.results.recorder import NARROWEST_TABLE, Recorder
from evaluate.results.rows import SpeedRow
from evaluate.tune.display import TuneDisplay, sentences, trials_table
from evaluate.tune.engines import EngineTrials
from evaluate.tune.search import Outcome, Search, SearchOptions
from evaluate.tune.serve_file import write_settings
from evaluate.tune.space import Space, check_names, space_of, text_of
from evaluate.tune.target import situation_of, tuned_checkpoint
from evaluate.tune.trials import Budget, TrialRequest
from serve.engine.launch import say_unused_kernels


def tune(config: TuneConfig) -> Outcome:
    """Searches and writes the settings. A failed trial does not stop the others."""
    budget = Budget(config.budget_s)
    check_names(config.settings)
    say_unused_kernels(config.engine)
    tuned = tuned_checkpoint(config)
    if config.accuracy.kind == QUICK:
        check_limits(config.accuracy, tuned.original, config.engine.max_model_len)
        check_text(config.accuracy, tuned.original)
    situation = situation_of(tuned, config.scenario_name)
    space = space_of(config.settings, situation, config.accuracy.kind == QUICK)
    _say_space(space, config)
    engine = tuned.config.engine
    recorder = Recorder(tuned.config, environment(config.gpu, engine))
    limits = rates(resolve_gpu(config.gpu), gpus_of(engine.options))
    display = TuneDisplay(budget)
    trials = EngineTrials(
        tuned, config.scenario_name, space, config.accuracy, recorder, display, limits
    )
    trials.check_length()
    options = SearchOptions(
        config.repeats, config.confirm_starts, config.side_by_side, config.trials, config.seed
    )
    with display:
        outcome = Search(space, trials, budget, options, display.learned).run()
    context = None
    if space.fixes_context(outcome.chosen):
        context = trials.plan(TrialRequest(outcome.chosen)).plan.context
    _show(outcome, recorder, config, context)
    path = Path(config.out).expanduser()
    chosen = space.engine(config.engine, outcome.chosen)
    write_settings(path, config, tuned.inspected.folder, chosen, context, outcome)
    command = command_text("serve", option_text("config", path))
    say(f"{path}: {text_of(outcome.chosen)}; {command} serves it")
    return outcome


def _say_space(space: Space, config: TuneConfig) -> None:
    names = ", ".join(setting.name for setting in space.settings)
    say(f"searching {names}; {space.size} combinations, budget {config.budget}")
    if config.settings is None:
        for name, reason in space.left_out.items():
            say(f"not searched: {name} {reason}")


def _show(outcome: Outcome, recorder: Recorder, config: TuneConfig, context: int | None) -> None:
    rows = [row for row in [*recorder.before, *recorder.rows] if isinstance(row, SpeedRow)]
    measured = [cell for cell in cells(rows) if cell.measure == config.scenario_name]
    value = measured[-1].ranked_by if measured else ""
    screen = table_console(NARROWEST_TABLE)
    screen.print(trials_table(outcome, value))
    say(f"{recorder.path}: {len(outcome.trials)} trials; {outcome.ended}")
    for line in sentences(outcome, context):
        print(line)
