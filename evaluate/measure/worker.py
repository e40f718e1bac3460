"""Measures one checkpoint in its own process, and sends each finished run through a pipe."""

import gc
import statistics
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy

from conf.process.inside import Send, run_program, wait_for_turn
from conf.process.messages import Failure
from conf.schema.load import ScenarioConfig
from conf.text import windows
from evaluate.measure.engines import (
    CANARIES,
    CANARY_TOKENS,
    Engine,
    LoadRequest,
    Stop,
    create,
)
from evaluate.measure.engines.vllm_log import LateCompiling
from evaluate.measure.events import (
    WORKER,
    EngineLoaded,
    Event,
    Job,
    MeasureFailed,
    ProfileWritten,
    RunMeasured,
    RunStarted,
    TextRead,
    TrialDone,
    WindowStarted,
)
from evaluate.measure.gpu_watch import GpuWatch, Watched, others_of
from evaluate.measure.host_watch import HostWatched, watching_host
from evaluate.measure.metrics import batch_values, serving_values
from evaluate.measure.run_parts import add_watched, compact_requests, own_memory
from evaluate.measure.text_view import TextView
from evaluate.measure.traffic.resolved import ResolvedConversation, read_resolved
from evaluate.measure.traffic.search import Searcher, TrialMeasured, WatchedRun
from evaluate.measure.validity import Observed, constant_output, reasons
from evaluate.measure.workload import (
    PROFILE,
    WARM_UP,
    Load,
    load_of,
    shortened,
    traffic_load,
    warm_up,
)
from evaluate.results.capacity_search import Trial, found
from evaluate.results.row_types import Startup

PROFILED_TOKENS = 9  # the first comes from the prefill, eight from decode steps


class _Measurement:
    """One loaded checkpoint and everything that is measured on it."""

    def __init__(self, job: Job, send: Send[Event]) -> None:
        self.job, self.send = job, send
        # A remote server does not use this machine's GPU.
        self.watch = GpuWatch(job.gpus if job.engine.url is None else 0)
        traces = Path(job.traces) if job.traces else None
        self.engine: Engine = create(
            LoadRequest(
                Path(job.folder),
                job.engine,
                job.context,
                job.dummy,
                Path(job.log),
                traces,
                job.accuracy.likely if job.accuracy.kind != "none" else 0,
            )
        )
        # A garbage collection over all imported objects takes half a second; vLLM's server freezes
        # them, too.
        gc.collect()
        gc.freeze()
        self.at_turn: frozenset[int] = frozenset()
        """Processes on the GPU when its turn came."""
        self.compiling = LateCompiling(Path(job.log))
        self.clocks: dict[str, float] = defaultdict(float)
        self.conversations: dict[str, list[ResolvedConversation]] = {}
        """Traffic by its hash."""
        self.trials: dict[str, dict[int, list[Trial]]] = defaultdict(lambda: defaultdict(list))
        """Trials by capacity search and repeat."""
        self.latencies: dict[str, float] = defaultdict(float)
        """How long a request took at the end of each capacity search."""
        for name, recorded in job.trials.items():
            for trial in recorded:
                self.trials[name][trial.repeat].append(
                    Trial(trial.rate, trial.meets, trial.of_curve)
                )

    def run(self) -> None:
        try:
            faults = [] if self.job.dummy else self._canary()
            loaded = self.engine.loaded
            if self.job.neighbours:
                loaded.startup = Startup()  # they shared the CPU
                loaded.memory = own_memory(loaded.memory)
            self.send(
                EngineLoaded(
                    startup=loaded.startup.numbers(),
                    memory=loaded.memory.numbers(),
                    kernels=loaded.kernels,
                    layer_kernels=loaded.layer_kernels,
                    faults=faults,
                )
            )
            wait_for_turn()
            self.at_turn = self.watch.processes()
            for name, scenario in self.job.scenarios.items():
                self._send_failure_of(name, partial(self._scenario, name, scenario))
            if self.job.accuracy.kind == "quick":
                self._send_failure_of("quick", self._score_text)
        finally:
            self.engine.close()

    def _send_failure_of(self, name: str, work: Callable[[], None]) -> None:
        """Does the work and sends its failure, if any. One failed cell does not stop the others."""
        try:
            work()
        except Exception as error:
            self.send(MeasureFailed(name, Failure.of(self.engine.death() or error)))

    def _canary(self) -> list[str]:
        """The faults of its answers to a few short prompts."""
        fault = constant_output(self.engine.answers(list(CANARIES), CANARY_TOKENS))
        return [f"the output is broken: {fault}"] if fault else []

    def _scenario(self, name: str, scenario: ScenarioConfig) -> None:
        repeats = self.job.repeats[name]
        if repeats or self.job.traces:
            self.send(RunStarted(name, WARM_UP))
            load = self._load(name, warm_up(scenario), WARM_UP)
            with self.watch.watching() as watched:
                self.engine.run_requests(shortened(load) if scenario.traffic else load)
            self._clock_share(name, watched)
        for repeat in repeats:
            self.send(RunStarted(name, repeat))
            if scenario.capacity is not None:
                self._search(name, scenario, repeat)
            else:
                self._timed_run(name, scenario, repeat, self._load(name, scenario, repeat))
        if self.job.traces and not scenario.is_sustained:
            self._profile(name, scenario)

    def _load(self, name: str, scenario: ScenarioConfig, repeat: int) -> Load:
        vocabulary = self.job.vocabulary
        if scenario.traffic is None:
            return load_of(scenario, name, repeat, vocabulary)
        sha256 = scenario.traffic.sha256
        if sha256 not in self.conversations:
            self.conversations[sha256] = read_resolved(sha256)
        return traffic_load(scenario, self.conversations[sha256], name, repeat, vocabulary)

    def _search(self, name: str, scenario: ScenarioConfig, repeat: int) -> None:
        """Searches the highest rate that meets the targets. Later repeats begin where the first one
        ended."""
        capacity = scenario.capacity
        assert capacity is not None
        trials = self.trials[name]
        ends = [found(trials[number], capacity.resolution) for number in range(repeat)]
        rates = [end.rate for end in ends if end is not None and end.low]

        def report(measured: TrialMeasured) -> None:
            add_watched(measured.values, measured.run.watched)
            measured.values.prefix_hits = float(measured.run.observed.prefix_hits)
            compact = compact_requests(measured.run.requests)
            if not measured.trial.meets or measured.trial.of_curve:
                # They make a row about five times as long, and only a rate that is held needs them.
                compact = replace(compact, times_s=[])
            self.send(
                TrialDone(
                    measure=name,
                    repeat=repeat,
                    scenario=measured.scenario,
                    meets=measured.trial.meets,
                    of_curve=measured.trial.of_curve,
                    values=measured.values.numbers(),
                    requests=compact,
                    invalid=measured.invalid,
                    error=measured.error,
                    slowest_s=measured.slowest_s,
                )
            )

        searcher = Searcher(
            scenario,
            # By the name and the repeat alone: all rates and checkpoints have one pattern of times.
            lambda at_rate: self._load(name, at_rate, repeat),
            partial(self._watched_run, name),
            report,
            self.latencies[name],
            self.engine.death,
            curve=0 if repeat else capacity.curve,
        )
        searcher.search(trials[repeat], statistics.median(rates) if rates else None)
        self.latencies[name] = searcher.latency_s

    def _timed_run(self, name: str, scenario: ScenarioConfig, repeat: int, load: Load) -> None:
        requests, observed, watched = self._watched_run(name, load, None)
        values = (
            serving_values(requests, scenario) if scenario.is_sustained else batch_values(requests)
        )
        add_watched(values, watched)
        values.prefix_hits = float(observed.prefix_hits)
        self.send(
            RunMeasured(
                measure=name,
                repeat=repeat,
                values=values.numbers(),
                requests=compact_requests(requests),
                # The GPU's total; with several engines loaded it belongs to none of them.
                peak_memory_gib=None if self.job.neighbours else watched.peak_memory_gib,
                invalid=reasons(requests, load, observed),
            )
        )

    def _watched_run(self, name: str, load: Load, stop: Stop | None) -> WatchedRun:
        self.compiling.since_last_look()
        hits, queries = self.engine.prefix_cache()
        processes = self.watch.processes()
        with self._watching_host() as host, self.watch.watching() as watched:
            requests = self.engine.run_requests(load, stop)
        watched.host = host
        processes |= self.watch.processes()
        hits_after, queries_after = self.engine.prefix_cache()
        observed = Observed(
            prefix_hits=hits_after - hits,
            prefix_queries=queries_after - queries,
            compiled=self.compiling.since_last_look(),
            throttled=watched.throttled,
            clock_share=self._clock_share(name, watched),
            power_capped=watched.power_capped or 0.0,
            other_processes=others_of(processes, frozenset(self.job.others), self.at_turn),
        )
        return WatchedRun(requests, observed, watched)

    def _watching_host(self) -> AbstractContextManager[HostWatched]:
        """A remote server has a host of its own."""
        if self.job.engine.url is not None:
            return nullcontext(HostWatched())
        return watching_host(self.engine.server_process)

    def _clock_share(self, name: str, watched: Watched) -> float | None:
        """The clock as a share of the fastest clock under this workload."""
        if watched.sm_clock_mhz is None:
            return None
        self.clocks[name] = max(self.clocks[name], watched.sm_clock_mhz)
        return watched.sm_clock_mhz / self.clocks[name]

    def _profile(self, name: str, scenario: ScenarioConfig) -> None:
        steps = min(PROFILED_TOKENS, scenario.output_tokens or PROFILED_TOKENS)
        load = self._load(name, replace(scenario, output_tokens=steps), PROFILE)
        self.send(RunStarted(name, PROFILE))
        trace = self.engine.profile(load)
        self.send(ProfileWritten(name, str(trace), steps))

    def _score_text(self) -> None:
        """Writes the model's view of the evaluation text, in windows that do not overlap, and its
        continuations of some window openings."""
        accuracy = self.job.accuracy
        text = windows(accuracy, self.engine.tokens_of)
        scored_windows = []
        for number, window in enumerate(text):
            self.send(WindowStarted(number, len(text)))
            scored_windows.append(self.engine.score_window(window, accuracy.likely))
        openings = [window[: len(window) // 2] for window in text[: accuracy.continuations]]
        answers = self.engine.generate(openings, accuracy.continued_tokens)
        width = accuracy.continued_tokens
        view = TextView(
            tokens=numpy.array([token for window in text for token in window[1:]], "int32"),
            chosen=numpy.array(
                [score for positions in scored_windows for score in positions.chosen], "float32"
            ),
            likely=numpy.array(
                [row for positions in scored_windows for row in positions.likely], "int32"
            ),
            scores=numpy.array(
                [row for positions in scored_windows for row in positions.scores], "float32"
            ),
            continuations=numpy.array(
                [(answer + [-1] * width)[:width] for answer in answers], "int32"
            ).reshape(-1, width),
        )
        view.save(Path(self.job.view))
        self.send(TextRead())


def work(job: Job, send: Send[Event]) -> None:
    """Measures one checkpoint in an engine, for `python -m evaluate`."""
    _Measurement(job, send).run()


if __name__ == "__main__":
    run_program(WORKER, work, str(work.__doc__))
