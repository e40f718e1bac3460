"""Runs tasks on one checkpoint after the other, each in its own server. Runs as a process."""

import time
from contextlib import closing
from pathlib import Path
from typing import Protocol

from conf.errors import QuantlineError, environment_failure, gate_failed
from conf.models import ORIGINAL
from conf.process.inside import Send, run_program
from conf.process.messages import Failure
from evaluate.accuracy.questions.code_answers import score_programs
from evaluate.accuracy.tasks.events import (
    AT_ONCE,
    TASKS_WORKER,
    AskTask,
    CheckpointJob,
    Event,
    ModelArguments,
    ServerReady,
    ServerStarting,
    TaskAnswered,
    TaskFailed,
    TaskProgress,
    TasksJob,
)
from evaluate.accuracy.tasks.harness import Harness
from evaluate.measure.engines import CANARIES, CANARY_TOKENS, Loaded, LoadRequest
from evaluate.measure.engines.vllm_server import ServerEngine
from evaluate.measure.validity import constant_output

SECONDS_FOR_A_REQUEST = 3600
SECONDS_BETWEEN_EVENTS = 0.5


class Server(Protocol):
    """A loaded checkpoint that the harness can ask over HTTP."""

    name: str
    url: str
    loaded: Loaded

    def answers(self, prompts: list[str], tokens: int) -> list[list[int]]: ...
    def death(self) -> QuantlineError | None: ...
    def close(self) -> None: ...


def _server(load: LoadRequest) -> Server:
    """Loads the checkpoint in the chosen engine."""
    if load.engine.kind == "transformers":
        from evaluate.accuracy.tasks.transformers_server import TransformersServer

        return TransformersServer(load)
    return ServerEngine(load)


class _TaskRunner:
    """Runs the harness against one server after the other."""

    def __init__(self, job: TasksJob, send: Send[Event]) -> None:
        self.job, self.send = job, send
        self.current = ("", "")
        self.due = 0.0
        self.harness = Harness(Path(job.interpreter), Path(job.log), self._progress, job.variables)
        self.given_up: set[str] = set()
        self.tasks = {task.name: task for task in job.tasks}

    def run(self) -> None:
        with closing(self.harness):
            for name, problem in self.harness.load(self.job.tasks).items():
                self._send_failure("", name, environment_failure(f"{problem} (see {self.job.log})"))
                self.given_up.add(name)
            for checkpoint in self.job.checkpoints:
                open_tasks = [task for task in checkpoint.samples if task not in self.given_up]
                if open_tasks:
                    self._ask_all(checkpoint, open_tasks)

    def _ask_all(self, checkpoint: CheckpointJob, tasks: list[str]) -> None:
        self.send(ServerStarting(checkpoint.name, checkpoint.log))
        try:
            log = Path(checkpoint.log)
            load = LoadRequest(
                Path(checkpoint.folder), self.job.engine, checkpoint.context, False, log
            )
            with closing(_server(load)) as engine:
                fault = constant_output(engine.answers(list(CANARIES), CANARY_TOKENS))
                if fault:
                    raise gate_failed(f"the output is broken: {fault}")
                self.send(self._ready(checkpoint, engine.loaded))
                for task in tasks:
                    self._ask(checkpoint, task, engine)
        except Exception as error:
            self._send_failure(checkpoint.name, "", error)
            self._give_up(checkpoint, tasks)

    def _ready(self, checkpoint: CheckpointJob, loaded: Loaded) -> ServerReady:
        startup, memory = loaded.startup.numbers(), loaded.memory.numbers()
        if self.job.neighbours:  # they shared the CPU, and the KV cache was sized for them
            startup = {}
            memory.pop("kv_cache_tokens", None)
        return ServerReady(
            checkpoint.name,
            startup=startup,
            memory=memory,
            kernels=loaded.kernels,
            layer_kernels=loaded.layer_kernels,
        )

    def _ask(self, checkpoint: CheckpointJob, task: str, engine: Server) -> None:
        self.current = (checkpoint.name, task)
        try:
            self.harness.ask(self._request(checkpoint, task, engine))
            if self.tasks[task].runs_code:
                self.current = (checkpoint.name, f"{task}: running answers")
                score_programs(Path(checkpoint.samples[task]), task, self._progress)
        except Exception as error:
            self._send_failure(checkpoint.name, task, engine.death() or error)
            self._give_up(checkpoint, [task])
            return
        self.send(TaskAnswered(checkpoint.name, task))

    def _give_up(self, checkpoint: CheckpointJob, tasks: list[str]) -> None:
        """Skips tasks that the original failed for all checkpoints: there is no comparison."""
        if checkpoint.name == ORIGINAL:
            self.given_up |= set(tasks)

    def _request(self, checkpoint: CheckpointJob, task: str, engine: Server) -> AskTask:
        accuracy = self.job.accuracy
        return AskTask(
            task=task,
            beside=self.tasks[task].folder,
            folder=checkpoint.samples[task],
            fewshot=accuracy.fewshot,
            limit=accuracy.limit,
            seed=accuracy.seed,
            chat_template=accuracy.chat_template,
            model=ModelArguments(
                model=engine.name,
                base_url=f"{engine.url}/v1/completions",
                tokenizer=checkpoint.folder,
                max_length=checkpoint.context,
                num_concurrent=AT_ONCE,
                timeout=SECONDS_FOR_A_REQUEST,
                seed=accuracy.seed,
                add_bos_token=not accuracy.chat_template,
            ),
        )

    def _progress(self, done: int, total: int) -> None:
        if time.monotonic() < self.due and done < total:
            return
        self.due = time.monotonic() + SECONDS_BETWEEN_EVENTS
        checkpoint, task = self.current
        self.send(TaskProgress(checkpoint, task, done, total))

    def _send_failure(self, checkpoint: str, task: str, error: Exception) -> None:
        self.send(TaskFailed(checkpoint, task, Failure.of(error)))


def work(job: TasksJob, send: Send[Event]) -> None:
    """Has the harness ask checkpoints its tasks, for `python -m evaluate accuracy=lm_eval` and
    `accuracy=questions`."""
    _TaskRunner(job, send).run()


if __name__ == "__main__":
    run_program(TASKS_WORKER, work, str(work.__doc__))
