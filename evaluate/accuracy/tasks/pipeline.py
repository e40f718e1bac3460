"""The pipeline of accuracy=lm_eval and accuracy=questions: runs tasks on the original and
checkpoints."""

import os
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.progress import Progress

from conf.cache import log_file
from conf.errors import QuantlineError
from conf.files.write_whole import remove, unfinished_path
from conf.process.merged import Ended, merged
from conf.process.running import start
from conf.schema.commands import QUESTIONS, AccuracyConfig, EvaluateConfig
from conf.terminal import progress, say, table_console
from evaluate.accuracy.questions.prepare import harness_variables, prepared_tasks
from evaluate.accuracy.tasks import samples
from evaluate.accuracy.tasks.events import TASKS_WORKER, CheckpointJob, Task, TasksJob
from evaluate.accuracy.tasks.harness import Interpreter, interpreter, tasks
from evaluate.accuracy.tasks.plan import (
    Checkpoint,
    answered_of,
    awaited_of,
    check_model,
    checkpoint_of,
    deferred_of,
    missing_of,
)
from evaluate.accuracy.tasks.record import TaskRecorder, remarks
from evaluate.accuracy.tasks.servers import WorkerPlan, worker_groups
from evaluate.measure.environment import environment
from evaluate.measure.side_by_side import variables as cache_variables
from evaluate.measure.targets import first_folder, real_folders, targets
from evaluate.report.show.terminal_tables import lost_table, questions_table
from evaluate.results.recorder import NARROWEST_TABLE, Recorder, results_home
from evaluate.results.rows import Row, TaskAccuracyRow
from serve.checks import verify_together
from serve.engine.launch import environment as engine_environment

# vLLM 0.32 refuses requests with more than four stop strings. Tasks that ask for programs have six.
MANY_STOPS = {"VLLM_MAX_STOP_STRINGS": "64"}


def measure_tasks(config: EvaluateConfig) -> list[Row]:
    """One row per checkpoint and task. Tasks that were answered before are not run again."""
    if config.engine.kind != "transformers":
        config = replace(config, engine=replace(config.engine, kind="vllm_server"))
    python = interpreter(config.accuracy.kind)
    named_tasks = _named_tasks(config.accuracy, python)
    run_environment = environment(config.gpu, config.engine)
    run_environment = run_environment.with_fields(
        versions=run_environment.versions | {"lm-eval": python.version}
    )
    recorder = Recorder(config, run_environment)
    home = results_home(config)
    root = home.with_name(f"{home.stem}-samples").absolute()
    checkpoints = _checkpoints(config, named_tasks, recorder, root)
    missing = missing_of(checkpoints, lambda folder: not config.force and _is_answered(folder))
    events = TaskRecorder(
        recorder,
        named_tasks,
        checkpoints,
        root,
        awaited_of(missing),
        deferred_of(checkpoints, named_tasks, missing),
    )
    for checkpoint, task in answered_of(checkpoints, named_tasks, missing):
        events.judge(checkpoint, task)
    if recorder.rows:
        count = len(recorder.rows)
        say(f"{recorder.path}: {count} runs are there already (force=true asks again)")
    if missing:
        groups = worker_groups(config, run_environment.engine_options, missing)
        _ask(groups, partial(_job, config, python.path, named_tasks), events)
    events.judge_deferred()
    _show(recorder, root)
    recorder.close()
    return recorder.rows


def _named_tasks(accuracy: AccuracyConfig, python: Interpreter) -> list[Task]:
    if accuracy.kind == QUESTIONS:
        return prepared_tasks(accuracy, python.tasks)
    return tasks(accuracy.tasks)


def _is_answered(folder: Path) -> bool:
    return (folder / samples.TASKS).is_file()


def _checkpoints(
    config: EvaluateConfig, named_tasks: list[Task], recorder: Recorder, root: Path
) -> dict[str, Checkpoint]:
    """Every usable target, by name. The failures of others are recorded."""
    all_targets = targets(config)
    original = first_folder(all_targets)
    check_model(original, config)
    verify_together(real_folders(all_targets))
    checkpoints = {}
    for target in all_targets:
        try:
            checkpoints[target.name] = checkpoint_of(
                target, original, named_tasks, config, recorder.environment, root
            )
        except Exception as error:
            recorder.fail(target.name, "", "", error)
    return checkpoints


def _ask(
    groups: list[list[WorkerPlan]], job_of: Callable[[WorkerPlan], TasksJob], events: TaskRecorder
) -> None:
    """Runs the missing tasks, group by group, and records the events of their workers."""
    with progress() as bars:
        for number, group in enumerate(groups):
            # The original is in the first group. What it failed has no comparison.
            given_up = events.awaited if number else set()
            plans = [plan.without(given_up) for plan in group]
            _ask_together([(plan, job_of(plan)) for plan in plans if plan.missing], events, bars)


def _ask_together(
    jobs: list[tuple[WorkerPlan, TasksJob]], events: TaskRecorder, bars: Progress
) -> None:
    """Runs a worker for each job at the same time. One that fails does not stop the others. All end
    with this function."""
    with ExitStack() as stack:
        workers = {}
        names = [plan.checkpoint for plan, _ in jobs]
        for place, (plan, job) in enumerate(jobs):
            _say_loading(plan, job)
            variables = engine_environment(job.engine.options) | cache_variables(names, place)
            worker = start(TASKS_WORKER, job, Path(job.log), MANY_STOPS | variables)
            workers[plan.checkpoint] = stack.enter_context(closing(worker))
            worker.begin()
        for event in merged({name: worker.events() for name, worker in workers.items()}):
            if not isinstance(event, Ended):
                events.record_event(event, bars)
                continue
            workers[event.name].close()  # a dead worker may have left its server
            if isinstance(event.error, QuantlineError):
                events.fail_worker(event.name, event.error)
            elif event.error is not None:
                raise event.error


def _say_loading(plan: WorkerPlan, job: TasksJob) -> None:
    checkpoint = f"{plan.checkpoint}: " if plan.checkpoint else ""
    names = ", ".join(task.name for task in job.tasks)
    say(f"{checkpoint}lm-eval: loading {names} (log in {job.log})")


def _job(
    config: EvaluateConfig, python: Path, named_tasks: list[Task], plan: WorkerPlan
) -> TasksJob:
    names = {name for unanswered in plan.missing for name in unanswered.tasks}
    accuracy, variables = config.accuracy, {}
    if accuracy.kind == QUESTIONS:  # prepared tasks have their number of questions and examples
        accuracy, variables = replace(accuracy, fewshot=None, limit=None), harness_variables()
    log_name = f"lm-eval-{plan.checkpoint}-" if plan.checkpoint else "lm-eval-"
    return TasksJob(
        interpreter=str(python),
        engine=plan.engine,
        accuracy=accuracy,
        tasks=[task for task in named_tasks if task.name in names],
        checkpoints=[
            _checkpoint_job(unanswered.checkpoint, unanswered.tasks) for unanswered in plan.missing
        ],
        log=str(log_file(f"{log_name}{os.getpid()}")),
        variables=variables,
        neighbours=plan.neighbours,
    )


def _checkpoint_job(checkpoint: Checkpoint, names: list[str]) -> CheckpointJob:
    for name in names:
        remove(unfinished_path(checkpoint.samples[name]))
    log = log_file(f"evaluate-{checkpoint.name}-{os.getpid()}")
    log.write_bytes(b"")
    return CheckpointJob(
        name=checkpoint.name,
        folder=str(checkpoint.folder.resolve()),
        context=checkpoint.context,
        samples={name: str(unfinished_path(checkpoint.samples[name])) for name in names},
        log=str(log),
    )


def _show(recorder: Recorder, root: Path) -> None:
    screen = table_console(NARROWEST_TABLE)
    rows = [row for row in recorder.rows if isinstance(row, TaskAccuracyRow)]
    for table in filter(None, [questions_table(rows), lost_table(rows)]):
        screen.print(table)
    for row in rows:
        for remark in remarks(row):
            say(f"{row.checkpoint}: {row.task}: {remark}")
    if recorder.rows:
        say(f"{root}: every question with its answers")
