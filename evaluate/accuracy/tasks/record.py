"""Records the events of the tasks' workers: turns samples into rows, compared with the original."""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from rich.progress import Progress, TaskID

from conf.errors import BAD_INPUT, QuantlineError, environment_failure, gate_failed
from conf.files.write_whole import finish
from conf.models import ORIGINAL
from conf.terminal import say
from evaluate.accuracy.answers import joined, own_values, paired_values
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
from evaluate.measure.environment import cell_key
from evaluate.results.recorder import Recorder
from evaluate.results.row_values import TaskAccuracy
from evaluate.results.rows import TaskAccuracyRow, current


@dataclass
class TaskComparison:
    """The samples of one task, or of all tasks of a group, and the original's samples."""

    name: str
    answered: list[samples.TaskSamples]
    original: list[samples.TaskSamples]
    """Empty for the original itself."""

    def values(self, seed: int) -> TaskAccuracy:
        cut = sum(task_samples.cut for task_samples in self.answered)
        if not self.original:
            return own_values(
                joined([samples.answers(task_samples) for task_samples in self.answered]), seed, cut
            )
        original_answers = [samples.answers(task_samples) for task_samples in self.original]
        metrics = [answers.metric for answers in original_answers]
        other_answers = [samples.answers(a, m) for a, m in zip(self.answered, metrics, strict=True)]
        values = paired_values(joined(original_answers), joined(other_answers), seed, cut)
        if len(metrics) == 1:
            lost = samples.lost_questions(self.original[0], self.answered[0], metrics[0])
            values.lost_questions = lost
        return values


@dataclass
class TaskRecorder:
    """Records the events of the tasks' workers."""

    recorder: Recorder
    tasks: list[Task]
    checkpoints: dict[str, Checkpoint]
    root: Path
    """The folder of all samples."""
    awaited: set[str] = field(default_factory=set)
    """Tasks that the original has still to answer."""
    deferred: list[tuple[Checkpoint, Task]] = field(default_factory=list)
    """Answered tasks that are judged once the original has answered them."""
    ready_servers: dict[str, ServerReady] = field(default_factory=dict)
    """The ready event of each checkpoint's server, if one was started."""
    bars: dict[tuple[str, str], TaskID] = field(default_factory=dict)
    not_loaded: set[str] = field(default_factory=set)
    """Tasks that a harness could not load. Every worker has one, and finds the same problem."""

    def __post_init__(self) -> None:
        self.kind = self.recorder.config.accuracy.kind
        earlier_rows = current(self.recorder.before)
        self.earlier_rows = {
            row.key: row for row in earlier_rows if isinstance(row, TaskAccuracyRow)
        }

    def record_event(self, event: Event, bars: Progress) -> None:
        """Records one event."""
        match event:
            case ServerStarting():
                engine = self.recorder.config.engine.kind
                say(f"{event.checkpoint}: loading in {engine} (log in {event.log})")
            case ServerReady():
                self.ready_servers[event.checkpoint] = event
            case TaskProgress():
                place = (event.checkpoint, event.task)
                if place not in self.bars:
                    name = f"{event.checkpoint}: {event.task}"
                    self.bars[place] = bars.add_task(name, total=event.total)
                bars.update(self.bars[place], completed=event.done, total=event.total)
            case TaskFailed():
                self._fail(event)
            case TaskAnswered():
                task = next(task for task in self.tasks if task.name == event.task)
                checkpoint = self.checkpoints[event.checkpoint]
                self._judge_in_order(checkpoint, task)

    def fail_worker(self, checkpoint: str, error: QuantlineError) -> None:
        """Records that the worker of a checkpoint failed, or the one of all if none is named."""
        is_named_before = str(error) in map(str, self.recorder.failures)
        if checkpoint and error.exit_code != BAD_INPUT:
            self.recorder.fail(checkpoint, "", "", error)
        elif not is_named_before:  # every worker refuses a wrong name of a task
            self.recorder.failures.append(error)

    def _fail(self, event: TaskFailed) -> None:
        if not event.checkpoint:
            if event.task in self.not_loaded:
                return
            self.not_loaded.add(event.task)
        self.recorder.fail(event.checkpoint or self.kind, event.task, "", event.failure.error)

    def _judge_in_order(self, checkpoint: Checkpoint, task: Task) -> None:
        """Judges an answered task; those that answered it before the original, after it. Forced
        answers take the place of older ones only when they are judged: a row and the answers that
        it stands for stay together."""
        ready = [(checkpoint, task)]
        is_early = checkpoint.name != ORIGINAL and task.name in self.awaited
        if not (is_early and self.recorder.config.force):
            finish(checkpoint.samples[task.name])
        if checkpoint.name == ORIGINAL:
            self.awaited.discard(task.name)
            ready += [entry for entry in self.deferred if entry[1] == task]
            self.deferred = [entry for entry in self.deferred if entry[1] != task]
        elif is_early:
            self.deferred += ready
            return
        for answered, its_task in ready:
            if self.recorder.config.force and answered is not checkpoint:
                finish(answered.samples[its_task.name])
            self.judge(answered, its_task)

    def judge_deferred(self) -> None:
        """Records the failure of tasks that the original did not answer, once all have ended."""
        for checkpoint, task in self.deferred:
            self.judge(checkpoint, task)
        self.deferred = []

    def judge(self, checkpoint: Checkpoint, task: Task) -> None:
        """Records the rows of a task from its samples. A group has one row per task and one for
        all questions together; the gate checks that last one."""
        try:
            comparisons = self._comparisons(checkpoint, task)
        except Exception as error:
            self.recorder.fail(checkpoint.name, task.name, "", error)
            return
        for comparison in comparisons:
            measure = f"{self.kind}:{comparison.name}"
            try:
                self._judge_task(
                    checkpoint, task, comparison, is_last=comparison is comparisons[-1]
                )
            except Exception as error:
                self.recorder.fail(checkpoint.name, measure, "", error)

    def _judge_task(
        self, checkpoint: Checkpoint, task: Task, comparison: TaskComparison, is_last: bool
    ) -> None:
        compared_with = self.checkpoints[ORIGINAL].sha256 if comparison.original else ""
        accuracy = self.recorder.config.accuracy
        settings = replace(settings_of(task, accuracy), original_sha256=compared_with)
        measure = f"{self.kind}:{comparison.name}"
        key = cell_key(
            checkpoint.environment, (checkpoint.name, measure), checkpoint.sha256, settings
        )
        earlier = self.earlier_rows.get(key)
        is_recorded = earlier is not None and earlier.measure == measure
        if earlier is not None and is_recorded and not self.recorder.config.force:
            self.recorder.rows.append(earlier)
            failed = self._gate(earlier.values) if is_last else None
            if failed is not None:
                self.recorder.note(checkpoint.name, measure, failed)
            return
        values = comparison.values(settings.seed)
        sample_folder = checkpoint.samples[task.name].relative_to(self.root.parent)
        row_settings = asdict(settings) | {"samples": str(sample_folder)}
        if len(comparison.answered) == 1:
            (task_samples,) = comparison.answered
            row_settings |= {"fewshot": task_samples.fewshot, "version": task_samples.version}
        ready = self.ready_servers.get(checkpoint.name, ServerReady(checkpoint.name))
        self.recorder.record(
            TaskAccuracyRow,
            checkpoint.name,
            measure,
            key,
            values=values,
            settings=row_settings,
            startup=ready.startup,
            memory=ready.memory,
            kernels=ready.kernels,
            layer_kernels=[kernels.content for kernels in ready.layer_kernels],
            environment=checkpoint.environment,
        )
        failed = self._gate(values) if is_last else None
        if failed is not None:
            self.recorder.fail(checkpoint.name, measure, key, failed)

    def _comparisons(self, checkpoint: Checkpoint, task: Task) -> list[TaskComparison]:
        original = self.checkpoints[ORIGINAL].samples[task.name]
        if task.name in self.awaited or not (original / samples.TASKS).is_file():
            raise environment_failure(
                "the original did not answer: there is nothing to compare with"
            )
        answered = samples.read(checkpoint.samples[task.name])
        original_samples = samples.read(original) if checkpoint.name != ORIGINAL else {}
        comparisons = [
            TaskComparison(
                name, [task_samples], [original_samples[name]] if original_samples else []
            )
            for name, task_samples in answered.items()
        ]
        if len(comparisons) > 1:
            originals = [original_samples[name] for name in answered] if original_samples else []
            comparisons.append(TaskComparison(task.name, list(answered.values()), originals))
        return comparisons

    def _gate(self, values: TaskAccuracy) -> QuantlineError | None:
        accuracy = self.recorder.config.accuracy
        unknown = values.verdict is not None and values.recovery is None
        if unknown and accuracy.min_recovery is not None:
            return gate_failed(
                "accuracy: the original answers no question correctly, so "
                f"accuracy.min_recovery={accuracy.min_recovery} cannot be checked"
            )
        return gate(values, accuracy)


def remarks(row: TaskAccuracyRow) -> list[str]:
    """Notes on why a task's scores are less meaningful; given once, with the original's row."""
    if row.checkpoint != ORIGINAL:
        return []
    values, notes = row.values, []
    if values.cut_questions:
        notes.append(
            f"{values.cut_questions} questions were longer than the context and lost their "
            "beginning; engine.max_model_len raises it"
        )
    if values.score_low <= (values.chance_score or 0.0):
        notes.append("the original may as well be guessing: a loss would not show")
    return notes
