"""Measures one checkpoint in a process of its own, and sends each run up a pipe as it is done."""

import gc
import json
import os
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy

from conf.compose import from_mapping
from conf.entry import answer_flags
from conf.errors import WORLD_FAULT, QuantlineError
from conf.schema.commands import AccuracyConfig
from conf.schema.load import EngineConfig, ScenarioConfig
from conf.text import windows
from evaluate.accuracy.divergence import TextView
from evaluate.measure.engines import CANARIES, CANARY_TOKENS, Engine, Load, create
from evaluate.measure.engines.vllm_log import LateCompiling
from evaluate.measure.gpu_watch import GpuWatch, Watched
from evaluate.measure.metrics import Request, batch_values, serving_values
from evaluate.measure.validity import Observed, constant_output, reasons
from evaluate.measure.workload import PROFILE, WARM_UP, prompts, warm_up
from evaluate.results.row_types import Startup
from evaluate.results.row_values import SpeedValues

PROFILED_TOKENS = 9  # the first comes from the prefill, eight from decode steps
ERROR_LENGTH = 300


@dataclass
class Job:
    """What one worker measures."""

    folder: str
    engine: EngineConfig
    scenarios: dict[str, ScenarioConfig]
    repeats: dict[str, list[int]]
    """The runs of each scenario that are still missing."""
    accuracy: AccuracyConfig
    context: int
    vocabulary: int
    dummy: bool
    gpus: int
    log: str
    traces: str | None
    view: str
    """Where its view of the text goes."""
    others: int = 0
    """Processes on the GPU that are not ours, counted before any engine was started."""
    neighbours: int = 0
    """Engines that stand loaded beside this one and are not measured while it is."""


Send = Callable[[str, dict[str, Any]], None]
Described = TypeVar("Described")


def end_with(life_line: int, pipe: int) -> None:
    """Leaves a process behind that waits for the other end of the life line to close, which is
    when the one that started us is gone, and then ends our whole group, engines and servers
    included. Processes that an engine forks must not hold the pipe: its end is our end."""
    if os.fork():
        os.close(life_line)
        os.set_inheritable(pipe, False)
        held = [pipe]

        def drop() -> None:
            # Once in each line of descent: later the number may belong to another file.
            while held:
                os.close(held.pop())

        os.register_at_fork(after_in_child=drop)
        return
    os.close(pipe)
    while os.read(life_line, 1):
        pass
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    work(Job, lambda job, send: _Measurement(job, send).run())


def work(schema: type[Described], measure: Callable[[Described, Send], None]) -> None:
    """A worker's life: its job comes on standard input, its events go up the pipe."""
    answer_flags(sys.argv[1:], str(work.__doc__))
    pipe, life_line = (int(argument) for argument in sys.argv[1:3])
    end_with(life_line, pipe)
    job = from_mapping(schema, json.loads(sys.stdin.readline()))

    def send(event: str, content: dict[str, Any]) -> None:
        os.write(pipe, (json.dumps({"event": event, **content}) + "\n").encode())

    try:
        measure(job, send)
    except QuantlineError as error:
        send("refused", {"error": str(error), "code": error.exit_code})
        sys.exit(error.exit_code)


class _Measurement:
    """One loaded checkpoint and everything that is measured on it."""

    def __init__(self, job: Job, send: Send) -> None:
        self.job, self.send = job, send
        # A server that runs elsewhere says nothing of the GPU here.
        self.watch = GpuWatch(job.gpus if job.engine.url is None else 0)
        traces = Path(job.traces) if job.traces else None
        self.engine: Engine = create(
            Load(
                Path(job.folder),
                job.engine,
                job.context,
                job.dummy,
                Path(job.log),
                traces,
                job.accuracy.likely if job.accuracy.kind != "none" else 0,
            )
        )
        # Python's search for garbage among all that was imported takes half a second; servers spare
        # their requests that, too.
        gc.collect()
        gc.freeze()
        self.ours = 0
        self.compiling = LateCompiling(Path(job.log))
        self.clocks: dict[str, float] = defaultdict(float)

    def run(self) -> None:
        try:
            faults = [] if self.job.dummy else self._canary()
            loaded = self.engine.loaded
            if self.job.neighbours:
                loaded.startup = Startup()  # they shared the CPU
            self.send("loaded", loaded.content() | {"faults": faults})
            sys.stdin.read()  # its end is our turn
            self.ours = self.watch.processes()
            for name, scenario in self.job.scenarios.items():
                self._guarded(name, partial(self._scenario, name, scenario))
            if self.job.accuracy.kind == "quick":
                self._guarded("quick", self._judge)
        finally:
            self.engine.close()

    def _guarded(self, name: str, work: Callable[[], None]) -> None:
        """One cell that fails does not stop the others."""
        try:
            work()
        except Exception as error:
            self.send("failed", {"measure": name, **described(self.engine.death() or error)})

    def _canary(self) -> list[str]:
        """Whether it says anything at all, on a few lines of text."""
        wrong = constant_output(self.engine.answers(list(CANARIES), CANARY_TOKENS))
        return [f"the output is broken: {wrong}"] if wrong else []

    def _scenario(self, name: str, scenario: ScenarioConfig) -> None:
        repeats = self.job.repeats[name]
        if repeats or self.job.traces:
            self.send("running", {"measure": name, "repeat": WARM_UP})
            shorter = warm_up(scenario)
            with self.watch.watching() as watched:
                tokens = prompts(shorter, name, WARM_UP, self.job.vocabulary)
                self.engine.take(tokens, shorter)
            self._clock_share(name, watched)
        for repeat in repeats:
            self.send("running", {"measure": name, "repeat": repeat})
            tokens = prompts(scenario, name, repeat, self.job.vocabulary)
            self._timed(name, scenario, repeat, tokens)
        if self.job.traces and not scenario.lasts:
            self._profile(name, scenario)

    def _timed(
        self, name: str, scenario: ScenarioConfig, repeat: int, tokens: list[list[int]]
    ) -> None:
        self.compiling.since_last_look()
        hits, queries = self.engine.prefix_cache()
        with self.watch.watching() as watched:
            requests = self.engine.take(tokens, scenario)
        hits_after, queries_after = self.engine.prefix_cache()
        seen = Observed(
            prefix_hits=hits_after - hits,
            prefix_queries=queries_after - queries,
            compiled=self.compiling.since_last_look(),
            throttled=watched.throttled,
            clock_share=self._clock_share(name, watched),
            power_capped=watched.power_capped or 0.0,
            other_processes=self.job.others + max(0, self.watch.processes() - self.ours),
        )
        values = serving_values(requests, scenario) if scenario.lasts else batch_values(requests)
        _add_energy(values, watched)
        values.prefix_hits = float(seen.prefix_hits)
        self.send(
            "run",
            {
                "measure": name,
                "repeat": repeat,
                "values": values.content(),
                "requests": _compact(requests),
                # All that is held on the GPU: of several engines it is nobody's own.
                "peak_memory_gib": None if self.job.neighbours else watched.peak_memory_gib,
                "invalid": reasons(requests, scenario, seen),
            },
        )

    def _clock_share(self, name: str, watched: Watched) -> float | None:
        """Of the fastest clock under this load."""
        if watched.sm_clock_mhz is None:
            return None
        self.clocks[name] = max(self.clocks[name], watched.sm_clock_mhz)
        return watched.sm_clock_mhz / self.clocks[name]

    def _profile(self, name: str, scenario: ScenarioConfig) -> None:
        tokens = prompts(scenario, name, PROFILE, self.job.vocabulary)
        steps = min(PROFILED_TOKENS, scenario.output_tokens)
        self.send("running", {"measure": name, "repeat": PROFILE})
        trace = self.engine.profile(tokens, replace(scenario, output_tokens=steps))
        self.send("profile", {"measure": name, "trace": str(trace), "steps": steps})

    def _judge(self) -> None:
        """The model's view of the evaluation text, in windows that do not overlap, and its
        continuations of some of their openings."""
        accuracy = self.job.accuracy
        text = windows(accuracy, self.engine.tokens_of)
        found = []
        for number, window in enumerate(text):
            self.send("judging", {"measure": "quick", "window": number, "windows": len(text)})
            found.append(self.engine.judged(window, accuracy.likely))
        openings = [window[: len(window) // 2] for window in text[: accuracy.continuations]]
        answers = self.engine.continued(openings, accuracy.continued_tokens)
        width = accuracy.continued_tokens
        view = TextView(
            tokens=numpy.array([token for window in text for token in window[1:]], "int32"),
            chosen=numpy.array([score for part in found for score in part.chosen], "float32"),
            likely=numpy.array([row for part in found for row in part.likely], "int32"),
            scores=numpy.array([row for part in found for row in part.scores], "float32"),
            continuations=numpy.array(
                [(answer + [-1] * width)[:width] for answer in answers], "int32"
            ).reshape(-1, width),
        )
        view.save(Path(self.job.view))
        self.send("judged", {"measure": "quick"})


def described(error: Exception) -> dict[str, Any]:
    """An error as the process above reads it."""
    if isinstance(error, QuantlineError):
        return {"error": str(error), "code": error.exit_code}
    words = " ".join(f"{type(error).__name__}: {error}".split())[:ERROR_LENGTH]
    return {"error": words, "code": WORLD_FAULT}


def _add_energy(values: SpeedValues, watched: Watched) -> None:
    if watched.energy_j and values.output_tokens:
        values.energy_j = watched.energy_j
        values.joules_per_output_token = watched.energy_j / values.output_tokens
    if watched.sm_clock_mhz:
        values.sm_clock_mhz = watched.sm_clock_mhz
    if watched.power_capped is not None:
        values.power_capped_share = watched.power_capped


def _compact(requests: list[Request]) -> dict[str, Any]:
    """Request by request, in few bytes: how many had how many tokens; when they were handed over,
    had their first and their last token, and how many at the very same times."""
    answered = [request for request in requests if request.token_times]
    times = Counter(
        tuple(round(moment, 6) for moment in (r.start, r.token_times[0], r.token_times[-1]))
        for r in answered
    )
    return {
        "input_tokens": dict(Counter(str(request.input_tokens) for request in answered)),
        "output_tokens": dict(Counter(str(request.output_tokens) for request in answered)),
        "times_s": [[*times, count] for times, count in sorted(times.items())],
    }


if __name__ == "__main__":
    main()
