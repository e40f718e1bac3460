"""Plans the tasks to run: for each checkpoint, the tasks without samples."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from conf.checkpoint_hash import checkpoint_hash
from conf.errors import bad_input
from conf.models import ORIGINAL, has_chat_template, read_config, required_int
from conf.schema.commands import AccuracyConfig, EvaluateConfig
from evaluate.accuracy.tasks.events import Task
from evaluate.measure.environment import cell_key
from evaluate.measure.targets import Target
from evaluate.results.row_types import Environment
from serve.checks import check

LONGEST_CONTEXT = 4096  # what the usual tasks need with their examples


@dataclass(frozen=True)
class Settings:
    """Everything that answers depend on, except the checkpoint and the machine."""

    task: str
    task_sha256: str
    fewshot: int | None
    limit: int | None
    seed: int
    chat_template: bool
    original_sha256: str = ""
    """Hash of the original's weights, if the checkpoint is compared with it."""


def settings_of(task: Task, accuracy: AccuracyConfig) -> Settings:
    return Settings(
        task.name,
        task.sha256,
        accuracy.fewshot,
        accuracy.limit,
        accuracy.seed,
        accuracy.chat_template,
    )


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that answers the tasks."""

    name: str
    folder: Path
    sha256: str
    context: int
    environment: Environment
    """The environment of its rows."""
    samples: dict[str, Path]
    """The folder of each task's samples."""


def checkpoint_of(
    target: Target,
    original: Path,
    tasks: list[Task],
    config: EvaluateConfig,
    environment: Environment,
    root: Path,
) -> Checkpoint:
    """The checkpoint of a target, after a check of its folder. Its samples are below the root."""
    if target.problem is not None:
        raise target.problem
    assert target.folder is not None
    check(target.folder, original, config.engine)
    check_model(target.folder, config)
    longest = required_int(read_config(target.folder), "max_position_embeddings")
    context = config.engine.max_model_len or min(longest, LONGEST_CONTEXT)
    sha256 = checkpoint_hash(target.folder)
    options = {"max_model_len": context} | environment.engine_options
    environment = environment.with_fields(checkpoint_sha256=sha256, engine_options=options)
    sample_folders = {}
    for task in tasks:
        settings = settings_of(task, config.accuracy)
        key = cell_key(environment, (target.name, config.accuracy.kind), sha256, settings)
        sample_folders[task.name] = root / target.name / f"{task.name.replace('/', '_')}-{key}"
    return Checkpoint(target.name, target.folder, sha256, context, environment, sample_folders)


def check_model(folder: Path, config: EvaluateConfig) -> None:
    """Raises where the model's own files rule out the options. The original's, checked first, are
    those of all checkpoints."""
    if config.accuracy.chat_template and not has_chat_template(folder):
        raise bad_input(f"accuracy.chat_template=true: {folder} has no chat template")
    longest = required_int(read_config(folder), "max_position_embeddings")
    is_changed = "hf_overrides" in config.engine.options
    if (config.engine.max_model_len or 0) > longest and not is_changed:
        raise bad_input(
            f"engine.max_model_len={config.engine.max_model_len}: the model has {longest} positions"
        )


@dataclass(frozen=True)
class Missing:
    """Tasks that one checkpoint has not answered yet."""

    checkpoint: Checkpoint
    tasks: list[str]


def missing_of(
    checkpoints: dict[str, Checkpoint], is_answered: Callable[[Path], bool]
) -> list[Missing]:
    """The tasks that checkpoints have not answered yet; empty without the original."""
    if ORIGINAL not in checkpoints:
        return []
    unanswered = [
        Missing(
            checkpoint, [n for n, folder in checkpoint.samples.items() if not is_answered(folder)]
        )
        for checkpoint in checkpoints.values()
    ]
    return [entry for entry in unanswered if entry.tasks]


def awaited_of(missing: list[Missing]) -> set[str]:
    """The tasks that the original has still to answer."""
    return {name for entry in missing if entry.checkpoint.name == ORIGINAL for name in entry.tasks}


def answered_of(
    checkpoints: dict[str, Checkpoint], tasks: list[Task], missing: list[Missing]
) -> list[tuple[Checkpoint, Task]]:
    """The tasks that can be judged now: the samples of both the checkpoint and the original
    exist."""
    if ORIGINAL not in checkpoints:
        return []
    unanswered = {(entry.checkpoint.name, name) for entry in missing for name in entry.tasks}
    return [
        (checkpoint, task)
        for checkpoint in checkpoints.values()
        for task in tasks
        if unanswered.isdisjoint({(checkpoint.name, task.name), (ORIGINAL, task.name)})
    ]


def deferred_of(
    checkpoints: dict[str, Checkpoint], tasks: list[Task], missing: list[Missing]
) -> list[tuple[Checkpoint, Task]]:
    """The tasks that a checkpoint has answered and the original has still to answer."""
    unanswered = {(entry.checkpoint.name, name) for entry in missing for name in entry.tasks}
    awaited = awaited_of(missing)
    return [
        (checkpoint, task)
        for checkpoint in checkpoints.values()
        for task in tasks
        if task.name in awaited and (checkpoint.name, task.name) not in unanswered
    ]
