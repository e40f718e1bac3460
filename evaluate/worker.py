"""Measures one checkpoint in a process of its own, and sends each run up a pipe as it is done."""

import ctypes
import json
import os
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from conf.compose import from_mapping
from conf.errors import QuantlineError
from conf.load_schema import EngineConfig, ScenarioConfig
from conf.schema import AccuracyConfig
from conf.text import documents
from evaluate.engines import CANARIES, CANARY_TOKENS, Engine, Load, create
from evaluate.engines.vllm_log import LateCompiling
from evaluate.gpu_watch import GpuWatch, Watched
from evaluate.metrics import Request, batch_values, perplexity, serving_values
from evaluate.validity import Observed, constant_output, reasons
from evaluate.workload import WARM_UP, prompts

PROFILED_TOKENS = 9  # the first comes from the prefill, eight from decode steps
ERROR_LENGTH = 300
PR_SET_PDEATHSIG = 1


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


Send = Callable[[str, dict[str, Any]], None]


def die_with_parent() -> None:
    """Asks the kernel to end this process when the one that started it is gone."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    die_with_parent()
    job: Job = from_mapping(Job, json.load(sys.stdin))
    pipe = int(sys.argv[1])

    def send(event: str, content: dict[str, Any]) -> None:
        os.write(pipe, (json.dumps({"event": event, **content}) + "\n").encode())

    try:
        _Measurement(job, send).run()
    except QuantlineError as error:
        send("refused", {"error": str(error), "code": error.exit_code})
        sys.exit(error.exit_code)


class _Measurement:
    """One loaded checkpoint and everything that is measured on it."""

    def __init__(self, job: Job, send: Send) -> None:
        self.job, self.send = job, send
        self.watch = GpuWatch(job.gpus)
        self.others = self.watch.processes()
        traces = Path(job.traces) if job.traces else None
        self.engine: Engine = create(
            Load(Path(job.folder), job.engine, job.context, job.dummy, Path(job.log), traces)
        )
        self.compiling = LateCompiling(Path(job.log))
        self.clocks: dict[str, float] = defaultdict(float)

    def run(self) -> None:
        try:
            faults = [] if self.job.dummy else self._canary()
            self.send("loaded", asdict(self.engine.loaded) | {"faults": faults})
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
            code = error.exit_code if isinstance(error, QuantlineError) else 3
            words = " ".join(f"{type(error).__name__}: {error}".split())[:ERROR_LENGTH]
            self.send("failed", {"measure": name, "error": words, "code": code})

    def _canary(self) -> list[str]:
        """Whether it says anything at all, on a few lines of text."""
        wrong = constant_output(self.engine.answers(list(CANARIES), CANARY_TOKENS))
        return [f"the output is broken: {wrong}"] if wrong else []

    def _scenario(self, name: str, scenario: ScenarioConfig) -> None:
        repeats = self.job.repeats[name]
        if repeats:
            self.send("running", {"measure": name, "repeat": WARM_UP})
            self._take(scenario, prompts(scenario, name, WARM_UP, self.job.vocabulary))
        for repeat in repeats:
            self.send("running", {"measure": name, "repeat": repeat})
            tokens = prompts(scenario, name, repeat, self.job.vocabulary)
            self._timed(name, scenario, repeat, tokens)
        if self.job.traces and not scenario.lasts:
            self._profile(name, scenario)

    def _take(self, scenario: ScenarioConfig, tokens: list[list[int]]) -> list[Request]:
        if scenario.lasts:
            return self.engine.lasting(tokens, scenario)
        return self.engine.batch(tokens, scenario.output_tokens)

    def _timed(
        self, name: str, scenario: ScenarioConfig, repeat: int, tokens: list[list[int]]
    ) -> None:
        self.compiling.since_last_look()
        hits, queries = self.engine.prefix_cache()
        with self.watch.watching() as watched:
            requests = self._take(scenario, tokens)
        hits_after, queries_after = self.engine.prefix_cache()
        seen = Observed(
            prefix_hits=hits_after - hits,
            prefix_queries=queries_after - queries,
            compiled=self.compiling.since_last_look(),
            throttled=watched.throttled,
            clock_share=self._clock_share(name, watched),
            other_processes=self.others,
        )
        values = serving_values(requests, scenario) if scenario.lasts else batch_values(requests)
        self.send(
            "run",
            {
                "measure": name,
                "repeat": repeat,
                "values": values | _energy(watched, values) | {"prefix_hits": seen.prefix_hits},
                "requests": _compact(requests),
                "peak_memory_gib": watched.peak_memory_gib,
                "invalid": reasons(requests, scenario, seen),
            },
        )

    def _clock_share(self, name: str, watched: Watched) -> float | None:
        if watched.sm_clock_mhz is None:
            return None
        self.clocks[name] = max(self.clocks[name], watched.sm_clock_mhz)
        return watched.sm_clock_mhz / self.clocks[name]

    def _profile(self, name: str, scenario: ScenarioConfig) -> None:
        tokens = prompts(scenario, name, WARM_UP - 1, self.job.vocabulary)
        steps = min(PROFILED_TOKENS, scenario.output_tokens)
        self.send("running", {"measure": name, "repeat": WARM_UP - 1})
        trace = self.engine.profile(tokens, steps)
        self.send("profile", {"measure": name, "trace": str(trace), "steps": steps})

    def _judge(self) -> None:
        """Perplexity on the evaluation part of the text, in windows that do not overlap."""
        accuracy = self.job.accuracy
        self.send("running", {"measure": "quick", "repeat": 0})
        tokens: list[int] = []
        for document in documents(accuracy.text, "evaluation"):
            tokens += self.engine.tokens_of(str(document))
            if len(tokens) >= accuracy.tokens:
                break
        tokens = tokens[: accuracy.tokens]
        windows = [tokens[i : i + accuracy.window] for i in range(0, len(tokens), accuracy.window)]
        found = self.engine.log_probabilities([window for window in windows if len(window) > 1])
        flat = [value for window in found for value in window]
        values = {"perplexity": perplexity(flat), "tokens": float(len(flat))}
        self.send("accuracy", {"measure": "quick", "repeat": 0, "values": values})


def _energy(watched: Watched, values: dict[str, float]) -> dict[str, float]:
    found = {}
    if watched.energy_j:
        found["energy_j"] = watched.energy_j
        found["joules_per_output_token"] = watched.energy_j / values["output_tokens"]
    if watched.sm_clock_mhz:
        found["sm_clock_mhz"] = watched.sm_clock_mhz
    return found


def _compact(requests: list[Request]) -> dict[str, Any]:
    """Request by request, in few bytes: how many had how many tokens, and their two times."""
    answered = [request for request in requests if request.token_times]
    return {
        "input_tokens": dict(Counter(str(request.input_tokens) for request in answered)),
        "output_tokens": dict(Counter(str(request.output_tokens) for request in answered)),
        "start_s": [round(request.start, 6) for request in answered],
        "first_token_s": [round(request.token_times[0], 6) for request in answered],
        "last_token_s": [round(request.token_times[-1], 6) for request in answered],
    }


if __name__ == "__main__":
    main()
