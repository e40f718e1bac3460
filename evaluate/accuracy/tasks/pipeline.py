"""The pipeline of accuracy=lm_eval and accuracy=questions: runs tasks on the original and
checkpoints."""

import os
from dataclasses import replace
from pathlib import Path

from conf.cache import log_file
from conf.errors import QuantlineError
from conf.files.write_whole import remove, unfinished_path
from conf.process.running import stream
from conf.schema.commands import QUESTIONS, AccuracyConfig, EvaluateConfig
from conf.terminal import progress, say, table_console
from evaluate.accuracy.questions.prepare import harness_variables, prepared_tasks
from evaluate.accuracy.tasks import samples
from evaluate.accuracy.tasks.events import TASKS_WORKER, CheckpointJob, Task, TasksJob
from evaluate.accuracy.tasks.harness import Interpreter, interpreter, tasks
from evaluate.accuracy.tasks.plan import (
    Checkpoint,
    Missing,
    answered_of,
    check_model,
    checkpoint_of,
    missing_of,
)
from evaluate.accuracy.tasks.record import TaskRecorder, remarks
from evaluate.measure.environment import environment
from evaluate.measure.targets import targets
from evaluate.report.show.terminal_tables import lost_table, questions_table
from evaluate.results.recorder import NARROWEST_TABLE, Recorder, results_home
from evaluate.results.rows import Row, TaskAccuracyRow
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
    events = TaskRecorder(recorder, named_tasks, checkpoints, root)
    for checkpoint, task in answered_of(checkpoints, named_tasks, missing):
        events.judge(checkpoint, task)
    if recorder.rows:
        count = len(recorder.rows)
        say(f"{recorder.path}: {count} runs are there already (force=true asks again)")
    if missing:
        _ask(_job(config, python.path, named_tasks, missing), events)
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
    original = next((target.folder for target in all_targets if target.folder is not None), Path())
    check_model(original, config)
    checkpoints = {}
    for target in all_targets:
        try:
            checkpoints[target.name] = checkpoint_of(
                target, original, named_tasks, config, recorder.environment, root
            )
        except Exception as error:
            recorder.fail(target.name, "", "", error)
    return checkpoints


def _ask(job: TasksJob, events: TaskRecorder) -> None:
    """Runs the missing tasks in a worker, and records its events."""
    say(f"lm-eval: loading {', '.join(task.name for task in job.tasks)} (log in {job.log})")
    try:
        with progress() as bars:
            for event in stream(
                TASKS_WORKER, job, Path(job.log), MANY_STOPS | engine_environment()
            ):
                events.record_event(event, bars)
    except QuantlineError as error:
        events.recorder.failures.append(error)


def _job(
    config: EvaluateConfig, python: Path, named_tasks: list[Task], missing: list[Missing]
) -> TasksJob:
    names = {name for unanswered in missing for name in unanswered.tasks}
    accuracy, variables = config.accuracy, {}
    if accuracy.kind == QUESTIONS:  # prepared tasks have their number of questions and examples
        accuracy, variables = replace(accuracy, fewshot=None, limit=None), harness_variables()
    return TasksJob(
        interpreter=str(python),
        engine=config.engine,
        accuracy=accuracy,
        tasks=[task for task in named_tasks if task.name in names],
        checkpoints=[
            _checkpoint_job(unanswered.checkpoint, unanswered.tasks) for unanswered in missing
        ],
        log=str(log_file(f"lm-eval-{os.getpid()}")),
        variables=variables,
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
