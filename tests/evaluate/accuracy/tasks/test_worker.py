"""The worker asks each server, and runs answers that are programs before it reports a task."""

from pathlib import Path
from typing import Any

import pytest

from conf.errors import environment_failure
from conf.schema.commands import AccuracyConfig
from conf.schema.load import EngineConfig
from evaluate.accuracy.tasks import worker
from evaluate.accuracy.tasks.events import (
    CheckpointJob,
    Event,
    Task,
    TaskAnswered,
    TaskFailed,
    TaskProgress,
    TasksJob,
)
from evaluate.measure.engines import Loaded


class Server:
    name, url, loaded = "made", "http://nowhere", Loaded()

    def answers(self, prompts: list[str], tokens: int) -> list[list[int]]:
        return [[number, 7, 9] for number, _ in enumerate(prompts)]

    def death(self) -> None:
        return None

    def close(self) -> None:
        pass


class Harness:
    def __init__(self, *arguments: Any) -> None:
        self.variables = arguments[3]

    def load(self, tasks: list[Task]) -> dict[str, str]:
        return {}

    def ask(self, request: Any) -> None:
        pass

    def close(self) -> None:
        pass


def events_of(job: TasksJob) -> list[Event]:
    sent: list[Event] = []
    worker.work(job, sent.append)
    return sent


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TasksJob:
    monkeypatch.setattr(worker, "Harness", Harness)
    monkeypatch.setattr(worker, "_server", lambda load: Server())
    samples = {"gsm8k": str(tmp_path / "gsm8k"), "mbpp": str(tmp_path / "mbpp")}
    checkpoint = CheckpointJob("original", "/model", 512, samples, str(tmp_path / "log"))
    tasks = [Task("gsm8k", "/g"), Task("mbpp", "/m", runs_code=True)]
    accuracy = AccuracyConfig(kind="questions", tasks=["gsm8k", "mbpp"], run_code=True)
    engine = EngineConfig(kind="vllm_server")
    return TasksJob("python", engine, accuracy, tasks, [checkpoint], str(tmp_path / "log"))


def test_only_answers_that_are_programs_are_run(
    job: TasksJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run: list[tuple[Path, str]] = []

    def score(folder: Path, task: str, progress: Any) -> None:
        run.append((folder, task))
        progress(1, 1)

    monkeypatch.setattr(worker, "score_programs", score)
    events = events_of(job)
    assert run == [(tmp_path / "mbpp", "mbpp")]
    progress = [event for event in events if isinstance(event, TaskProgress)]
    assert progress == [TaskProgress("original", "mbpp: running answers", 1, 1)]
    answered = [event.task for event in events if isinstance(event, TaskAnswered)]
    assert answered == ["gsm8k", "mbpp"]
    assert events.index(progress[0]) < events.index(TaskAnswered("original", "mbpp"))


def test_a_sandbox_that_fails_is_the_failure_of_its_task(
    job: TasksJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise environment_failure("the sandbox could not be made")

    monkeypatch.setattr(worker, "score_programs", fail)
    events = events_of(job)
    failed = [event for event in events if isinstance(event, TaskFailed)]
    assert [(event.task, event.failure.error.exit_code) for event in failed] == [("mbpp", 3)]
    assert TaskAnswered("original", "gsm8k") in events
