"""Records what the tasks' worker sends: from samples to rows, against the original's."""

import shutil
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from rich.progress import Progress, TaskID

from conf.errors import QuantlineError, gate_failed, world_fault
from conf.models import ORIGINAL
from conf.schema.commands import LM_EVAL
from conf.terminal import say
from evaluate.accuracy.judging import gate
from evaluate.accuracy.tasks import samples
from evaluate.accuracy.tasks.events import (
    Event,
    ServerReady,
    ServerStarting,
    Task,
    TaskAnswered,
    TaskFailed,
    TaskProgress,
)
from evaluate.accuracy.tasks.plan import Checkpoint, settings_of
from evaluate.accuracy.tasks.questions import joined, own_values, paired_values
from evaluate.measure.environment import cell_key
from evaluate.results.recorder import Recorder
from evaluate.results.row_values import TaskAccuracy
from evaluate.results.rows import TASK, TaskAccuracyRow, current


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


@dataclass
class TaskRecorder:
    """Where the events of the tasks' worker go."""

    recorder: Recorder
    tasks: list[Task]
    checkpoints: dict[str, Checkpoint]
    root: Path
    """Of all samples."""
    ready: dict[str, ServerReady] = field(default_factory=dict)
    """What the server of each checkpoint said of itself; none where none had to be started."""
    shown: dict[tuple[str, str], TaskID] = field(default_factory=dict)

    def __post_init__(self) -> None:
        before = current(self.recorder.before)
        self.standing = {row.key: row for row in before if isinstance(row, TaskAccuracyRow)}

    def record_event(self, event: Event, bars: Progress) -> None:
        """Records one event."""
        match event:
            case ServerStarting():
                say(f"{event.checkpoint}: loading in vllm_server (log in {event.log})")
            case ServerReady():
                self.ready[event.checkpoint] = event
            case TaskProgress():
                place = (event.checkpoint, event.task)
                if place not in self.shown:
                    name = f"{event.checkpoint}: {event.task}"
                    self.shown[place] = bars.add_task(name, total=event.total)
                bars.update(self.shown[place], completed=event.done, total=event.total)
            case TaskFailed():
                error = event.failure.error
                self.recorder.fail(event.checkpoint or LM_EVAL, event.task, "", error)
            case TaskAnswered():
                task = next(task for task in self.tasks if task.name == event.task)
                checkpoint = self.checkpoints[event.checkpoint]
                publish(checkpoint.samples[task.name])
                self.judge(checkpoint, task)

    def judge(self, checkpoint: Checkpoint, task: Task) -> None:
        """The rows of a task, from samples that lie there: of a group one for each of its tasks,
        and one for all of their questions, which the gate looks at."""
        try:
            compared = self._compared(checkpoint, task)
        except Exception as error:
            self.recorder.fail(checkpoint.name, task.name, "", error)
            return
        for part in compared:
            measure = f"{TASK}{part.name}"
            try:
                self._judge_part(checkpoint, task, part, is_last=part is compared[-1])
            except Exception as error:
                self.recorder.fail(checkpoint.name, measure, "", error)

    def _judge_part(
        self, checkpoint: Checkpoint, task: Task, part: Compared, is_last: bool
    ) -> None:
        compared_with = self.checkpoints[ORIGINAL].sha256 if part.before else ""
        accuracy = self.recorder.config.accuracy
        settings = replace(settings_of(task, accuracy), original_sha256=compared_with)
        measure = f"{TASK}{part.name}"
        key = cell_key(
            checkpoint.environment, (checkpoint.name, measure), checkpoint.sha256, settings
        )
        standing = self.standing.get(key)
        stands = standing is not None and standing.measure == measure
        if standing is not None and stands and not self.recorder.config.force:
            self.recorder.rows.append(standing)
            failed = self._gate(standing.values) if is_last else None
            if failed is not None:
                self.recorder.note(checkpoint.name, measure, failed)
            return
        values = part.values(settings.seed)
        kept = checkpoint.samples[task.name].relative_to(self.root.parent)
        stated = asdict(settings) | {"samples": str(kept)}
        if len(part.asked) == 1:
            (asked,) = part.asked
            stated |= {"fewshot": asked.fewshot, "version": asked.version}
        ready = self.ready.get(checkpoint.name, ServerReady(checkpoint.name))
        self.recorder.record(
            TaskAccuracyRow,
            checkpoint.name,
            measure,
            key,
            values=values,
            settings=stated,
            startup=ready.startup,
            memory=ready.memory,
            kernels=ready.kernels,
            environment=checkpoint.environment,
        )
        failed = self._gate(values) if is_last else None
        if failed is not None:
            self.recorder.fail(checkpoint.name, measure, key, failed)

    def _compared(self, checkpoint: Checkpoint, task: Task) -> list[Compared]:
        original = self.checkpoints[ORIGINAL].samples[task.name]
        if not (original / samples.TASKS).is_file():
            raise world_fault("the original did not answer: there is nothing to compare with")
        answered = samples.read(checkpoint.samples[task.name])
        before = samples.read(original) if checkpoint.name != ORIGINAL else {}
        parts = [
            Compared(name, [asked], [before[name]] if before else [])
            for name, asked in answered.items()
        ]
        if len(parts) > 1:
            others = [before[name] for name in answered] if before else []
            parts.append(Compared(task.name, list(answered.values()), others))
        return parts

    def _gate(self, values: TaskAccuracy) -> QuantlineError | None:
        accuracy = self.recorder.config.accuracy
        unknown = values.verdict is not None and values.recovery is None
        if unknown and accuracy.min_recovery is not None:
            return gate_failed(
                "accuracy: the original answers no question right, so that nothing can be said of "
                f"accuracy.min_recovery={accuracy.min_recovery}"
            )
        return gate(values, accuracy)


def remarks(row: TaskAccuracyRow) -> list[str]:
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


def unfinished(kept: Path) -> Path:
    """Where samples are written before they are whole."""
    return kept.with_name(f"{kept.name}.partial")


def publish(kept: Path) -> None:
    """Samples appear whole; older ones make room."""
    shutil.rmtree(kept, ignore_errors=True)
    unfinished(kept).rename(kept)
