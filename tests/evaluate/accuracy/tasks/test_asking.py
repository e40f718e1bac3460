"""Workers that run at the same time: their events become rows, whatever their order."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from conf.errors import QuantlineError, bad_input, environment_failure
from conf.files.write_whole import unfinished_path
from conf.process.messages import Failure
from conf.terminal import progress
from evaluate.accuracy.tasks import pipeline
from evaluate.accuracy.tasks.events import Event, Task, TaskAnswered, TaskFailed, TasksJob
from evaluate.accuracy.tasks.plan import (
    Checkpoint,
    Missing,
    awaited_of,
    deferred_of,
    missing_of,
)
from evaluate.accuracy.tasks.record import TaskRecorder
from evaluate.accuracy.tasks.servers import WorkerPlan
from evaluate.results.recorder import Recorder
from evaluate.results.results_file import read
from evaluate.results.rows import TaskAccuracyRow
from tests.conftest import evaluate_config
from tests.evaluate.accuracy.tasks.test_samples import sample
from tests.evaluate.test_plan import ENVIRONMENT

TASKS = [Task("arc"), Task("gsm8k")]
NAMES = ("original", "w8", "w4")
Stream = Callable[[], Iterator[Event]]


def write_samples(folder: Path) -> None:
    folder.mkdir(parents=True)
    samples = [sample(number, number > 0) for number in range(4)]
    (folder / "made.jsonl").write_text("".join(json.dumps(one) + "\n" for one in samples))
    described = {
        "file": "made.jsonl", "scores": {"acc,none": 0.75}, "higher_is_better": {"acc": True},
        "kind": "multiple_choice", "fewshot": 0, "version": 1, "cut": 0,
    }  # fmt: skip
    (folder / "tasks.json").write_text(json.dumps({folder.name.rpartition("-")[2]: described}))


@dataclass
class Asked:
    """A recorder, and stand-ins for workers."""

    events: TaskRecorder
    checkpoints: dict[str, Checkpoint]
    streams: dict[str, Stream] = field(default_factory=dict)
    jobs: list[TasksJob] = field(default_factory=list)
    variables: list[dict[str, str]] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)

    def plan(self, *names: str) -> WorkerPlan:
        missing = [Missing(self.checkpoints[name], [task.name for task in TASKS]) for name in names]
        engine = self.events.recorder.config.engine
        return WorkerPlan(missing, engine, names[0], neighbours=1)

    def job(self, plan: WorkerPlan) -> TasksJob:
        return pipeline._job(self.events.recorder.config, Path("python"), TASKS, plan)

    def ask(self, *groups: list[WorkerPlan]) -> None:
        pipeline._ask(list(groups), self.job, self.events)
        self.events.judge_deferred()

    def answered(self, checkpoint: str, task: str) -> TaskAnswered:
        """The event of a task whose samples are written."""
        write_samples(unfinished_path(self.checkpoints[checkpoint].samples[task]))
        return TaskAnswered(checkpoint, task)

    def answers(self, checkpoint: str, *tasks: str) -> Stream:
        return lambda: (self.answered(checkpoint, task) for task in tasks)

    @property
    def rows(self) -> list[tuple[str, str]]:
        rows = read(self.events.recorder.path)[0]
        return [(r.checkpoint, r.task) for r in rows if isinstance(r, TaskAccuracyRow)]

    @property
    def failures(self) -> list[str]:
        return [str(failure) for failure in self.events.recorder.failures]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    root = tmp_path / "results-samples"
    checkpoints = {
        name: Checkpoint(
            name,
            tmp_path / name,
            "5ha",
            512,
            ENVIRONMENT,
            {task.name: root / name / f"k-{task.name}" for task in TASKS},
        )
        for name in NAMES
    }
    config = evaluate_config(
        "model=tiny", "accuracy=lm_eval", f"results={tmp_path / 'results.jsonl'}"
    )
    recorder = Recorder(config, ENVIRONMENT)
    awaited = {task.name for task in TASKS}
    made = Asked(TaskRecorder(recorder, TASKS, checkpoints, root, awaited), checkpoints)

    class Worker:
        def __init__(self, _: Any, job: TasksJob, log: Path, variables: dict[str, str]) -> None:
            made.jobs.append(job)
            made.variables.append(variables)
            self.name = job.checkpoints[0].name

        def begin(self) -> None:
            pass

        def events(self) -> Iterator[Event]:
            return made.streams[self.name]()

        def close(self) -> None:
            made.closed.append(self.name)

    monkeypatch.setattr(pipeline, "start", Worker)
    return made


def test_a_checkpoint_that_is_faster_than_the_original_is_judged_after_it(asked: Asked) -> None:
    with progress() as bars:
        asked.events.record_event(asked.answered("w8", "arc"), bars)
        asked.events.record_event(asked.answered("w4", "gsm8k"), bars)
        assert asked.rows == []
        assert (asked.checkpoints["w8"].samples["arc"] / "tasks.json").is_file(), "it is kept"
        asked.events.record_event(asked.answered("original", "arc"), bars)
        assert asked.rows == [("original", "arc"), ("w8", "arc")]
        asked.events.record_event(asked.answered("w4", "arc"), bars)
        asked.events.record_event(asked.answered("original", "gsm8k"), bars)
    asked.events.judge_deferred()
    assert asked.rows[2:] == [("w4", "arc"), ("original", "gsm8k"), ("w4", "gsm8k")]
    assert asked.failures == []


def test_forced_answers_replace_older_ones_only_when_they_are_judged(asked: Asked) -> None:
    config = replace(asked.events.recorder.config, force=True)
    asked.events.recorder.use(config, asked.events.recorder.environment)
    older = asked.checkpoints["w8"].samples["arc"]
    write_samples(older)
    (older / "older").touch()
    with progress() as bars:
        asked.events.record_event(asked.answered("w8", "arc"), bars)
        assert (older / "older").exists(), "an interruption here leaves the row's own answers"
        asked.events.record_event(asked.answered("original", "arc"), bars)
    assert not (older / "older").exists()
    assert asked.rows == [("original", "arc"), ("w8", "arc")]


def test_without_the_originals_answers_there_is_nothing_to_compare_with(asked: Asked) -> None:
    """Also where an older answer of the original lies there, which is asked again."""
    write_samples(asked.checkpoints["original"].samples["arc"])

    def original() -> Iterator[Event]:
        yield TaskFailed("original", "arc", Failure("no answer", 3))
        yield asked.answered("original", "gsm8k")

    asked.streams = {"original": original, "w8": asked.answers("w8", "arc", "gsm8k")}
    asked.ask([asked.plan("original"), asked.plan("w8")])
    assert sorted(asked.rows) == [("original", "gsm8k"), ("w8", "gsm8k")]
    assert asked.failures == [
        "original: arc: no answer",
        "w8: arc: the original did not answer: there is nothing to compare with",
    ]


def test_a_worker_that_dies_does_not_stop_the_others(asked: Asked) -> None:
    def dies() -> Iterator[Event]:
        yield asked.answered("w8", "arc")
        raise environment_failure("the engine was ended by SIGKILL")

    tasks = ("arc", "gsm8k")
    asked.streams = {
        "original": asked.answers("original", *tasks),
        "w8": dies,
        "w4": asked.answers("w4", *tasks),
    }
    asked.ask([asked.plan(name) for name in NAMES])
    expected = {(name, task) for name in ("original", "w4") for task in tasks} | {("w8", "arc")}
    assert set(asked.rows) == expected
    assert asked.failures == ["w8: the engine was ended by SIGKILL"]
    assert set(asked.closed) == set(NAMES)


def test_a_group_does_not_ask_what_the_original_failed_before(asked: Asked) -> None:
    def original() -> Iterator[Event]:
        yield TaskFailed("original", "arc", Failure("no answer", 3))
        yield asked.answered("original", "gsm8k")

    asked.streams = {
        "original": original,
        "w8": asked.answers("w8", "arc", "gsm8k"),
        "w4": asked.answers("w4", "gsm8k"),
    }
    asked.ask([asked.plan("original"), asked.plan("w8")], [asked.plan("w4")])
    assert [list(job.checkpoints[0].samples) for job in asked.jobs][2] == ["gsm8k"]
    assert ("w4", "gsm8k") in asked.rows


def test_workers_share_no_log_and_no_compile_cache(asked: Asked) -> None:
    asked.streams = {name: asked.answers(name, "arc") for name in NAMES}
    asked.ask([asked.plan(name) for name in NAMES])
    logs = [log for job in asked.jobs for log in (job.log, job.checkpoints[0].log)]
    assert len(set(logs)) == 6
    caches = [variables.get("VLLM_CACHE_ROOT", "") for variables in asked.variables]
    assert [Path(cache).name for cache in caches] == list(NAMES)


def test_what_every_worker_finds_is_said_once(asked: Asked) -> None:
    def refuses() -> Iterator[Event]:
        yield TaskFailed("", "arc", Failure("no data", 3))
        raise bad_input("accuracy.tasks: the harness has no task 'gsm9k'.")

    asked.streams = dict.fromkeys(NAMES, refuses)
    asked.ask([asked.plan(name) for name in NAMES])
    assert sorted(asked.failures) == [
        "accuracy.tasks: the harness has no task 'gsm9k'.",
        "lm_eval: arc: no data",
    ]


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_an_interruption_ends_all_workers(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, interruption: type[BaseException]
) -> None:
    def interrupt(*_: Any) -> None:
        raise interruption

    monkeypatch.setattr(asked.events, "record_event", interrupt)
    asked.streams = {name: asked.answers(name, "arc") for name in NAMES}
    with pytest.raises(interruption):
        asked.ask([asked.plan(name) for name in NAMES])
    assert set(asked.closed) == set(NAMES)


def test_one_worker_of_all_checkpoints_fails_under_no_name(asked: Asked) -> None:
    def dies() -> Iterator[Event]:
        yield asked.answered("original", "arc")
        raise environment_failure("the engine stopped")

    asked.streams = {"original": dies}
    asked.ask([replace(asked.plan(*NAMES), checkpoint="", neighbours=0)])
    assert asked.rows == [("original", "arc")]
    assert asked.failures == ["the engine stopped"]
    assert len(asked.jobs[0].checkpoints) == 3


def test_answers_of_an_interrupted_run_are_judged_with_the_originals(asked: Asked) -> None:
    """The checkpoint was faster, and the run ended before the original had answered."""
    write_samples(asked.checkpoints["w8"].samples["arc"])
    checkpoints = {name: asked.checkpoints[name] for name in ("original", "w8")}
    missing = missing_of(checkpoints, lambda folder: (folder / "tasks.json").is_file())
    deferred = deferred_of(checkpoints, TASKS, missing)
    assert deferred == [(checkpoints["w8"], TASKS[0])]
    assert awaited_of(missing) == {"arc", "gsm8k"}
    asked.events.deferred = deferred
    with progress() as bars:
        asked.events.record_event(asked.answered("original", "arc"), bars)
    assert asked.rows == [("original", "arc"), ("w8", "arc")]


def test_an_unknown_fault_is_no_failure_of_a_checkpoint(asked: Asked) -> None:
    def breaks() -> Iterator[Event]:
        yield asked.answered("w8", "arc")
        raise ValueError("a message of another version")

    asked.streams = {"original": asked.answers("original", "arc"), "w8": breaks}
    with pytest.raises(ValueError, match="another version") as caught:
        asked.ask([asked.plan("original"), asked.plan("w8")])
    assert not isinstance(caught.value, QuantlineError)
    assert set(asked.closed) == {"original", "w8"}
