"""The story of accuracy=lm_eval: the harness's tasks, asked of the original and of checkpoints."""

import os
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, TaskID

from conf.cache import log_file
from conf.errors import QuantlineError, bad_input, gate_failed, world_fault
from conf.models import ORIGINAL, has_chat_template, read_config
from conf.schema.commands import LM_EVAL, EvaluateConfig
from conf.terminal import progress, say
from evaluate.accuracy.judging import gate
from evaluate.accuracy.tasks import samples
from evaluate.accuracy.tasks.harness import Task, interpreter, tasks
from evaluate.accuracy.tasks.questions import joined, own_values, paired_values
from evaluate.accuracy.tasks.worker import Sitting, TasksJob
from evaluate.measure.environment import cell_key, environment
from evaluate.measure.process import run_worker
from evaluate.measure.targets import Target, targets
from evaluate.report.show.terminal_tables import lost_table, questions_table
from evaluate.results.recorder import NARROWEST_TABLE, Recorder
from evaluate.results.row_types import Environment
from evaluate.results.row_values import TaskAccuracy
from evaluate.results.rows import TASK, TaskAccuracyRow, current
from serve.checks import check, checkpoint_hash

LONGEST_CONTEXT = 4096  # what the usual tasks need with their examples


@dataclass
class Settings:
    """What answers depend on, beside the checkpoint and the machine."""

    task: str
    task_sha256: str
    fewshot: int | None
    limit: int | None
    seed: int
    chat_template: bool
    original_sha256: str = ""
    """Of the weights that a checkpoint is compared with."""


@dataclass
class Checkpoint:
    """One of those that are asked."""

    name: str
    folder: Path
    sha256: str
    context: int
    environment: Environment
    samples: dict[str, Path]
    """For each task, where its samples are kept."""
    loaded: dict[str, Any]
    """What its server says of itself; nothing where none had to be started."""


@dataclass
class Compared:
    """One task, or all tasks of a group, and the original's answers to it."""

    name: str
    asked: list[samples.Asked]
    before: list[samples.Asked]
    """Empty for the original itself."""

    def values(self, seed: int) -> TaskAccuracy:
        cut = sum(asked.cut for asked in self.asked)
        if not self.before:
            return own_values(joined([samples.answers(asked) for asked in self.asked]), seed, cut)
        originals = [samples.answers(asked) for asked in self.before]
        metrics = [answers.metric for answers in originals]
        others = [samples.answers(a, m) for a, m in zip(self.asked, metrics, strict=True)]
        values = paired_values(joined(originals), joined(others), seed, cut)
        if len(metrics) == 1:
            lost = samples.lost_questions(self.before[0], self.asked[0], metrics[0])
            values.lost_questions = lost
        return values


def measure_tasks(config: EvaluateConfig) -> None:
    """One row for each checkpoint and task; what stands already is not asked again."""
    Survey(replace(config, engine=replace(config.engine, kind="vllm_server"))).run()


class Survey(Recorder):
    """One run of the harness's tasks."""

    def __init__(self, config: EvaluateConfig) -> None:
        self.interpreter, version = interpreter()
        self.tasks = tasks(config.accuracy.tasks)
        super().__init__(config, environment(config.gpu, config.engine))
        self.environment.versions = self.environment.versions | {"lm-eval": version}
        self.root = self.path.with_name(f"{self.path.stem}-samples").absolute()
        self.standing = {
            row.key: row for row in current(self.before) if isinstance(row, TaskAccuracyRow)
        }
        self.recorded: list[TaskAccuracyRow] = []
        self.checkpoints: dict[str, Checkpoint] = {}

    def run(self) -> None:
        found = targets(self.config)
        original = next((t.folder for t in found if t.folder is not None), Path())
        for target in found:
            try:
                self.checkpoints[target.name] = self._checkpoint(target, original)
            except Exception as error:
                self.fail(target.name, "", "", error)
        missing = self._missing()
        self._take_what_stands(missing)
        if missing:
            self._ask(missing)
        self._finish()

    def _checkpoint(self, target: Target, original: Path) -> Checkpoint:
        if target.problem is not None:
            raise target.problem
        assert target.folder is not None
        check(target.folder, original, self.config.engine)
        if self.config.accuracy.chat_template and not has_chat_template(target.folder):
            raise bad_input(f"accuracy.chat_template=true: {target.folder} has no chat template")
        longest = int(read_config(target.folder)["max_position_embeddings"])
        context = self.config.engine.max_model_len or min(longest, LONGEST_CONTEXT)
        sha256 = checkpoint_hash(target.folder)
        options = {"max_model_len": context} | self.environment.engine_options
        environment = self.environment.with_fields(checkpoint_sha256=sha256, engine_options=options)
        kept = {}
        for task in self.tasks:
            cell = cell_key(environment, (target.name, LM_EVAL), sha256, self._settings(task))
            kept[task.name] = self.root / target.name / f"{task.name.replace('/', '_')}-{cell}"
        return Checkpoint(target.name, target.folder, sha256, context, environment, kept, {})

    def _settings(self, task: Task) -> Settings:
        asked = self.config.accuracy
        return Settings(
            task.name, task.sha256, asked.fewshot, asked.limit, asked.seed, asked.chat_template
        )

    def _missing(self) -> list[tuple[Checkpoint, list[str]]]:
        """What is still to be asked; nothing of a checkpoint without an original beside it."""
        if ORIGINAL not in self.checkpoints:
            return []
        found = []
        for checkpoint in self.checkpoints.values():
            names = [n for n, kept in checkpoint.samples.items() if not self._stands(kept)]
            if names:
                found.append((checkpoint, names))
        return found

    def _stands(self, kept: Path) -> bool:
        return not self.config.force and (kept / samples.TASKS).is_file()

    def _take_what_stands(self, missing: list[tuple[Checkpoint, list[str]]]) -> None:
        asked = {(checkpoint.name, name) for checkpoint, names in missing for name in names}
        for checkpoint in self.checkpoints.values() if ORIGINAL in self.checkpoints else []:
            for task in self.tasks:
                compared = (ORIGINAL, task.name)
                if asked.isdisjoint({(checkpoint.name, task.name), compared}):
                    self._judged(checkpoint, task)
        if self.rows:
            say(f"{self.path}: {len(self.rows)} runs stand there already (force=true asks again)")

    def _ask(self, missing: list[tuple[Checkpoint, list[str]]]) -> None:
        job = self._job(missing)
        say(f"lm-eval: loading {', '.join(t.name for t in job.tasks)} (log in {job.log})")
        try:
            with progress() as bars:
                shown: dict[tuple[str, str], TaskID] = {}
                for event in run_worker(
                    "evaluate.accuracy.tasks.worker", asdict(job), Path(job.log)
                ):
                    self._happened(event, bars, shown)
        except QuantlineError as error:
            self.failures.append(error)

    def _job(self, missing: list[tuple[Checkpoint, list[str]]]) -> TasksJob:
        wanted = {name for _, names in missing for name in names}
        return TasksJob(
            interpreter=str(self.interpreter),
            engine=self.config.engine,
            accuracy=self.config.accuracy,
            tasks=[task for task in self.tasks if task.name in wanted],
            sittings=[self._sitting(checkpoint, names) for checkpoint, names in missing],
            log=str(log_file(f"lm-eval-{os.getpid()}")),
        )

    def _sitting(self, checkpoint: Checkpoint, names: list[str]) -> Sitting:
        for name in names:
            shutil.rmtree(_partial(checkpoint.samples[name]), ignore_errors=True)
        log = log_file(f"evaluate-{checkpoint.name}-{os.getpid()}")
        log.write_bytes(b"")
        return Sitting(
            name=checkpoint.name,
            folder=str(checkpoint.folder.resolve()),
            context=checkpoint.context,
            samples={name: str(_partial(checkpoint.samples[name])) for name in names},
            log=str(log),
        )

    def _happened(
        self, event: dict[str, Any], bars: Progress, shown: dict[tuple[str, str], TaskID]
    ) -> None:
        kind, name = event.pop("event"), event.pop("checkpoint")
        if kind == "loading":
            say(f"{name}: loading in vllm_server (log in {event['log']})")
        elif kind == "loaded":
            self.checkpoints[name].loaded = event
        elif kind == "asking":
            place = (name, event["task"])
            if place not in shown:
                shown[place] = bars.add_task(f"{name}: {event['task']}", total=event["total"])
            bars.update(shown[place], completed=event["done"], total=event["total"])
        elif kind == "failed":
            error = QuantlineError(event["error"], event["code"])
            self.fail(name or LM_EVAL, event["task"], "", error)
        else:
            task = next(task for task in self.tasks if task.name == event["task"])
            _publish(self.checkpoints[name].samples[task.name])
            self._judged(self.checkpoints[name], task)

    def _judged(self, checkpoint: Checkpoint, task: Task) -> None:
        """The rows of a task, from samples that lie there: of a group one for each of its tasks,
        and one for all of their questions, which the gate looks at."""
        try:
            compared = self._compared(checkpoint, task)
        except Exception as error:
            self.fail(checkpoint.name, task.name, "", error)
            return
        for part in compared:
            measure = f"{TASK}{part.name}"
            try:
                row, stood = self._task_row(checkpoint, task, part, measure)
                if row is None:
                    continue
                failed = self._gate(row) if part is compared[-1] else None
                if failed is not None and stood:
                    self.note(checkpoint.name, measure, failed)
                elif failed is not None:
                    self.fail(checkpoint.name, measure, row.key, failed)
            except Exception as error:
                self.fail(checkpoint.name, measure, "", error)

    def _compared(self, checkpoint: Checkpoint, task: Task) -> list[Compared]:
        original = self.checkpoints[ORIGINAL].samples[task.name]
        if not (original / samples.TASKS).is_file():
            raise world_fault("the original did not answer: there is nothing to compare with")
        found = samples.read(checkpoint.samples[task.name])
        before = samples.read(original) if checkpoint.name != ORIGINAL else {}
        parts = [
            Compared(name, [asked], [before[name]] if before else [])
            for name, asked in found.items()
        ]
        if len(parts) > 1:
            others = [before[name] for name in found] if before else []
            parts.append(Compared(task.name, list(found.values()), others))
        return parts

    def _task_row(
        self, checkpoint: Checkpoint, task: Task, part: Compared, measure: str
    ) -> tuple[TaskAccuracyRow | None, bool]:
        """The row, and whether it stood there already."""
        compared = self.checkpoints[ORIGINAL].sha256 if part.before else ""
        settings = replace(self._settings(task), original_sha256=compared)
        cell = cell_key(
            checkpoint.environment, (checkpoint.name, measure), checkpoint.sha256, settings
        )
        standing = self.standing.get(cell)
        if standing is not None and standing.measure == measure and not self.config.force:
            self.rows.append(standing)
            self.recorded.append(standing)
            return standing, True
        kept = checkpoint.samples[task.name].relative_to(self.root.parent)
        stated = asdict(settings) | {"samples": str(kept)}
        if len(part.asked) == 1:
            (asked,) = part.asked
            stated |= {"fewshot": asked.fewshot, "version": asked.version}
        row = self.record(
            TaskAccuracyRow,
            checkpoint.name,
            measure,
            cell,
            values=part.values(settings.seed),
            settings=stated,
            environment=checkpoint.environment,
            **checkpoint.loaded,
        )
        if row is not None:
            self.recorded.append(row)
        return row, False

    def _gate(self, row: TaskAccuracyRow) -> QuantlineError | None:
        accuracy = self.config.accuracy
        unknown = row.values.verdict is not None and row.values.recovery is None
        if unknown and accuracy.min_recovery is not None:
            return gate_failed(
                "accuracy: the original answers no question right, so that nothing can be said of "
                f"accuracy.min_recovery={accuracy.min_recovery}"
            )
        return gate(row.values, accuracy)

    def _finish(self) -> None:
        screen = Console()
        screen.width = max(screen.width, NARROWEST_TABLE)
        for table in filter(None, [questions_table(self.recorded), lost_table(self.recorded)]):
            screen.print(table)
        for row in self.recorded:
            for remark in _remarks(row):
                say(f"{row.checkpoint}: {row.task}: {remark}")
        if self.rows:
            say(f"{self.root}: every question with its answers")
        self.close()


def _remarks(row: TaskAccuracyRow) -> list[str]:
    """What makes a score worth less than it looks, which is the same for all checkpoints."""
    if row.checkpoint != ORIGINAL:
        return []
    values, found = row.values, []
    if values.cut_questions:
        found.append(
            f"{values.cut_questions} questions were longer than the context and lost their "
            "beginning; engine.max_model_len raises it"
        )
    if values.score_low <= (values.chance_score or 0.0):
        found.append("the original may as well be guessing: a loss would not show")
    return found


def _partial(kept: Path) -> Path:
    return kept.with_name(f"{kept.name}.partial")


def _publish(kept: Path) -> None:
    """Samples appear whole; older ones make room."""
    shutil.rmtree(kept, ignore_errors=True)
    _partial(kept).rename(kept)
