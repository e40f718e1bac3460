"""Asks one checkpoint after the other, each behind a server of its own, in a process of its own."""

import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conf.errors import gate_failed, world_fault
from conf.models import ORIGINAL
from conf.schema.commands import AccuracyConfig
from conf.schema.load import EngineConfig
from evaluate.accuracy.tasks.harness import Harness, Task
from evaluate.measure.engines import CANARIES, CANARY_TOKENS, Load
from evaluate.measure.engines.vllm_server import ServerEngine
from evaluate.measure.validity import constant_output
from evaluate.measure.worker import Send, described, work

AT_ONCE = 32  # requests that the server holds
SECONDS_FOR_A_REQUEST = 3600
SECONDS_BETWEEN_EVENTS = 0.5


@dataclass
class Sitting:
    """One checkpoint and what it is asked."""

    name: str
    folder: str
    context: int
    samples: dict[str, str]
    """For each task, the folder that its samples go to."""
    log: str


@dataclass
class TasksJob:
    """Everything that is asked in one run."""

    interpreter: str
    engine: EngineConfig
    accuracy: AccuracyConfig
    tasks: list[Task]
    sittings: list[Sitting]
    log: str


class _Round:
    """The harness, and the servers it asks."""

    def __init__(self, job: TasksJob, send: Send) -> None:
        self.job, self.send = job, send
        self.where = ("", "")
        self.due = 0.0
        self.harness = Harness(Path(job.interpreter), Path(job.log), self._progress)
        self.given_up: set[str] = set()
        self.folders = {task.name: task.folder for task in job.tasks}

    def run(self) -> None:
        with closing(self.harness):
            for name, words in self.harness.load(self.job.tasks).items():
                self._failed("", name, world_fault(f"{words} (see {self.job.log})"))
                self.given_up.add(name)
            for sitting in self.job.sittings:
                left = [task for task in sitting.samples if task not in self.given_up]
                if left:
                    self._sit(sitting, left)

    def _sit(self, sitting: Sitting, tasks: list[str]) -> None:
        self.send("loading", {"checkpoint": sitting.name, "log": sitting.log})
        try:
            log = Path(sitting.log)
            load = Load(Path(sitting.folder), self.job.engine, sitting.context, False, log)
            with closing(ServerEngine(load)) as engine:
                wrong = constant_output(engine.answers(list(CANARIES), CANARY_TOKENS))
                if wrong:
                    raise gate_failed(f"the output is broken: {wrong}")
                loaded = {"checkpoint": sitting.name, **engine.loaded.content()}
                self.send("loaded", loaded)
                for task in tasks:
                    self._ask(sitting, task, engine)
        except Exception as error:
            self._failed(sitting.name, "", error)
            self._give_up(sitting, tasks)

    def _ask(self, sitting: Sitting, task: str, engine: ServerEngine) -> None:
        self.where = (sitting.name, task)
        try:
            self.harness.ask(self._request(sitting, task, engine))
        except Exception as error:
            self._failed(sitting.name, task, engine.death() or error)
            self._give_up(sitting, [task])
            return
        self.send("answered", {"checkpoint": sitting.name, "task": task})

    def _give_up(self, sitting: Sitting, tasks: list[str]) -> None:
        """What the original did not answer is asked of no checkpoint: it would prove nothing."""
        if sitting.name == ORIGINAL:
            self.given_up |= set(tasks)

    def _request(self, sitting: Sitting, task: str, engine: ServerEngine) -> dict[str, Any]:
        accuracy = self.job.accuracy
        return {
            "task": task,
            "beside": self.folders[task],
            "folder": sitting.samples[task],
            "fewshot": accuracy.fewshot,
            "limit": accuracy.limit,
            "seed": accuracy.seed,
            "chat_template": accuracy.chat_template,
            "model": {
                "model": engine.name,
                "base_url": f"{engine.url}/v1/completions",
                "tokenizer": sitting.folder,
                "tokenizer_backend": "huggingface",
                "max_length": sitting.context,
                "num_concurrent": AT_ONCE,
                "timeout": SECONDS_FOR_A_REQUEST,
                "seed": accuracy.seed,
                # A chat template writes the first token itself; else the tokenizer has to, where
                # the model was trained with one.
                "add_bos_token": not accuracy.chat_template,
            },
        }

    def _progress(self, done: int, total: int) -> None:
        if time.monotonic() < self.due and done < total:
            return
        self.due = time.monotonic() + SECONDS_BETWEEN_EVENTS
        checkpoint, task = self.where
        content = {"checkpoint": checkpoint, "task": task, "done": done, "total": total}
        self.send("asking", content)

    def _failed(self, checkpoint: str, task: str, error: Exception) -> None:
        self.send("failed", {"checkpoint": checkpoint, "task": task, **described(error)})


if __name__ == "__main__":
    work(TasksJob, lambda job, send: _Round(job, send).run())
