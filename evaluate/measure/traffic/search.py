"""Measures trials of a capacity search: traffic at a rate, until its targets are decided."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from conf.errors import environment_failure
from conf.schema.load import ScenarioConfig
from conf.schema.traffic import CapacityConfig
from evaluate.measure.engines import Stop
from evaluate.measure.gpu_watch import Watched
from evaluate.measure.metrics import (
    NOT_SENT,
    UNFINISHED,
    Request,
    missed_target,
    serving_values,
)
from evaluate.measure.validity import Observed, reasons
from evaluate.measure.workload import ALL_AT_ONCE, Load, all_at_once
from evaluate.results.capacity_search import (
    Begin,
    Found,
    Limit,
    Trial,
    found,
    missing_curve,
    next_rate,
)
from evaluate.results.late_requests import RequestPace, allowed_misses, slowest
from evaluate.results.row_values import SpeedValues

MOST_INVALID = 2  # trials of a search that are repeated before it fails
CUT_OFF = (NOT_SENT, UNFINISHED)
NO_TOKENS = "an answer without tokens"
PAUSES_S = (0, 1, 2, 4, 8, 16, 32)
"""Before each attempt to reach a server that refused requests: gateways often count by the minute.
"""
SECONDS_ALONE = 60.0  # for the answers of all these attempts together: a server may hang
MOST_SILENT = 20
"""A server that sends nothing at all for so many times the target of a first token hangs, or for
`SECONDS_ALONE` if that is longer."""
TOKENS_ALONE = 16  # of such an answer at most: a long one may take minutes
STEADY = 4.0
"""Conversations of a trial begin for so many times as long as one of them takes. In a shorter time
few are in progress together, and rates meet the targets that the server cannot hold."""
MOST_LONGER = 3  # trials at one rate that are repeated with more requests
ENOUGH = 0.9  # of the requests that a trial should have had
LEAST_OF_CURVE = 10  # requests of a trial that decides nothing


class WatchedRun(NamedTuple):
    """A run, and what was observed beside its times."""

    requests: list[Request]
    observed: Observed
    watched: Watched


@dataclass
class Misses:
    """Counts requests that miss the targets. A run is decided when they are too many."""

    scenario: ScenarioConfig
    allowed: int
    """Misses with which the share is still reached."""
    by_request: dict[int, Limit] = field(default_factory=dict)
    """What each of them missed, by the request's id."""
    error: str = ""
    """Of the first request that failed."""

    @property
    def count(self) -> int:
        return len(self.by_request)

    def of(self, limit: Limit) -> int:
        return sum(missed is limit for missed in self.by_request.values())

    def stop(self, request: Request) -> bool:
        """Whether the run is decided. An answered request is judged by both targets, one that has
        its first token by the first one. One that fails after a late token has failed."""
        if has_failed(request):
            self.by_request[id(request)] = Limit.FAILURES
            self.error = self.error or request.error or NO_TOKENS
        elif (missed := missed_target(request, self.scenario)) is not None:
            self.by_request.setdefault(id(request), missed)
        return self.count > self.allowed


def has_failed(request: Request) -> bool:
    return not request.is_answered and request.error not in CUT_OFF


def _paces(requests: list[Request]) -> list[RequestPace]:
    """Those of all requests that have a first token and did not fail, also of those that were cut
    off."""
    return [
        (request.ttft, (request.tpot or 0.0) if request.is_answered else 0.0)
        for request in requests
        if request.token_times and not has_failed(request)
    ]


def answer_rate(load: Load, requests: list[Request], seconds: float) -> float:
    """Answers a second of requests that came at once, by the tokens that arrived: it is known
    before the first answer is whole. The last tenth of the tokens is left out: long answers that
    end almost alone. Without any token, one answer in all the seconds."""
    times = sorted(time for request in requests for time in request.token_times)
    if not times:
        return 1 / seconds
    wanted = sum(planned.output_tokens for planned in load.requests)
    count = max(1, min(len(times), wanted * 9 // 10))
    return count / wanted * len(load.requests) / times[count - 1]


@dataclass(frozen=True)
class TrialMeasured:
    """One trial, as measured."""

    trial: Trial
    scenario: ScenarioConfig
    """With the trial's rate and number of requests."""
    values: SpeedValues
    run: WatchedRun
    invalid: list[str]
    error: str = ""
    """Of the first request that failed."""
    slowest_s: list[RequestPace] = field(default_factory=list)
    """The requests that decide any targets."""


LoadAt = Callable[[ScenarioConfig], Load]
Run = Callable[[Load, Stop | None], WatchedRun]


@dataclass
class Searcher:
    """Searches the capacity of one loaded engine."""

    scenario: ScenarioConfig
    load_at: LoadAt
    """The requests of a trial."""
    run: Run
    report: Callable[[TrialMeasured], None]
    latency_s: float = 0.0
    """Of a request, in the last trial that met the targets."""
    death: Callable[[], Exception | None] = lambda: None
    """Why the engine died; None if it lives."""
    pause: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    curve: int = 0
    """Trials of the curve after the search."""
    _invalid: int = 0

    def search(self, trials: list[Trial], expected: float | None) -> None:
        """Measures trials until the search ends, and those of its curve. `trials` has those of an
        interrupted search; `expected` is the rate that earlier searches found."""
        resolution = self._capacity.resolution
        begin = self._begin(trials, expected)
        while (rate := next_rate(trials, resolution, begin)) is not None:
            self._try(rate, trials)
        latency_s = self.latency_s
        while rates := missing_curve(trials, resolution, self.curve):
            end = found(trials, resolution)
            assert end is not None
            self._try(rates[0], trials, end)
        self.latency_s = latency_s  # at the end of the search, for the next one

    def _try(self, rate: float, trials: list[Trial], end: Found | None = None) -> None:
        """Measures and reports one trial, and adds it to the others if it is valid. With the end of
        the search, it is one of the curve."""
        measured = self._steady_trial(rate, end)
        self.report(measured)
        if not measured.invalid:
            trials.append(measured.trial)
            return
        self._invalid += 1
        if self._invalid > MOST_INVALID:
            raise environment_failure(
                f"{self._invalid} trials were not valid, the last one: {measured.invalid[0]}"
            )

    @property
    def _capacity(self) -> CapacityConfig:
        assert self.scenario.capacity is not None
        return self.scenario.capacity

    def _begin(self, trials: list[Trial], expected: float | None) -> Begin:
        first = self._capacity.first_rate
        if expected is None and first is not None:
            return Begin(first, is_near=False)
        if expected is None:
            expected = trials[0].rate if trials else self._burst_rate()
        return Begin(expected, is_near=True)

    def _burst_rate(self) -> float:
        """The rate at which requests are answered that all come at once. The capacity is near it,
        or below where the targets are strict."""
        capacity = self._capacity
        scenario = replace(self.scenario, rate=ALL_AT_ONCE, requests=capacity.least_requests)

        def takes_too_long(request: Request) -> bool:
            return bool(request.token_times) and request.token_times[-1] > capacity.seconds

        load = all_at_once(self._load_at(scenario))
        return answer_rate(load, self.run(load, takes_too_long).requests, capacity.seconds)

    def _load_at(self, scenario: ScenarioConfig) -> Load:
        assert scenario.ttft_ms is not None
        silence_s = max(SECONDS_ALONE, MOST_SILENT * scenario.ttft_ms / 1e3)
        return replace(self.load_at(scenario), silence_s=silence_s)

    def _steady_trial(self, rate: float, end: Found | None = None) -> TrialMeasured:
        """A trial whose requests arrive for long enough. How long they take is known after a trial:
        one that was too short, and met the targets, is repeated."""
        for _ in range(1 + MOST_LONGER):
            count = self._count(rate, end)
            measured = self._trial(rate, count, of_curve=end is not None)
            if measured.invalid or not measured.trial.meets:
                break
            self.latency_s = measured.values.request_latency_mean_s or 0.0
            if count >= ENOUGH * self._count(rate, end):
                break
        return measured

    def _count(self, rate: float, end: Found | None = None) -> int:
        """The requests of a trial. One of the curve takes as long as one at the end of the search:
        at its lower rates, `least_requests` would take up to eight times as long."""
        capacity = self._capacity
        seconds = max(capacity.seconds, STEADY * self._conversation_s())
        least = capacity.least_requests
        if end is not None:
            seconds = max(seconds, least / end.rate)
            least = min(least, LEAST_OF_CURVE)
        return max(least, round(rate * seconds))

    def _conversation_s(self) -> float:
        """How long a conversation takes: its turns, and the pauses between them."""
        traffic = self.scenario.traffic
        if traffic is None or not traffic.conversations:
            return self.latency_s
        turns = traffic.requests / traffic.conversations
        return turns * self.latency_s + (turns - 1) * (traffic.pause_s or 0.0)

    def _trial(self, rate: float, count: int, of_curve: bool) -> TrialMeasured:
        capacity = self._capacity
        scenario = replace(self.scenario, rate=rate, requests=count)
        load = self._load_at(scenario)
        misses = Misses(scenario, allowed_misses(count, capacity.share))

        def stop(request: Request) -> bool:
            is_decided = misses.stop(request)
            return is_decided and not of_curve  # its figures are wanted, not a decision

        run = self.run(load, stop)
        sent = [
            (planned, request)
            for planned, request in zip(load.requests, run.requests, strict=True)
            if request.error not in CUT_OFF
        ]
        values = _values_of([request for _, request in sent], scenario)
        cut_off = len(run.requests) - len(sent)
        values.cut_off_requests = float(cut_off)
        # Of a run that was cut off, the most that it could have reached.
        values.good_share = (count - misses.count) / count
        values.late_first_tokens = float(misses.of(Limit.FIRST_TOKEN))
        values.late_further_tokens = float(misses.of(Limit.FURTHER_TOKENS))
        failed = misses.of(Limit.FAILURES)
        values.failed_requests, values.failed_share = float(failed), failed / max(1, len(sent))
        if failed:
            self._check_server(load, misses.error)
        meets = misses.count <= misses.allowed
        # Requests that failed have missed: a server that sheds load has a capacity, too.
        answered = [(planned, request) for planned, request in sent if request.is_answered]
        answered_load = replace(load, requests=[planned for planned, _ in answered])
        # Clocks are compared within one load, and here each trial has another one.
        observed = replace(run.observed, clock_share=None)
        invalid = reasons([request for _, request in answered], answered_load, observed)
        trial = Trial(rate, meets, of_curve)
        slow = slowest(_paces(run.requests), misses.allowed)
        return TrialMeasured(trial, scenario, values, run, invalid, misses.error, slow)

    def _check_server(self, load: Load, error: str) -> None:
        """Raises if the server does not answer a request that comes alone: then it has not shed
        load, and the trial says nothing about its rate. It has about a minute for that, whether it
        refuses the request or hangs."""
        if (death := self.death()) is not None:
            raise death
        planned = load.requests[0]
        tokens = min(planned.output_tokens, TOKENS_ALONE)
        planned = replace(planned, arrival_s=0.0, after=None, output_tokens=tokens)
        left_s = SECONDS_ALONE
        for seconds in PAUSES_S:
            self.pause(seconds)
            begin = self.clock()
            alone = replace(load, requests=[planned], at_once=1, most_s=left_s)
            (request,) = self.run(alone, None).requests
            if request.is_answered:
                return
            left_s -= self.clock() - begin
            if left_s <= 0:
                break
        raise environment_failure(
            f"requests failed ({error}), and the server does not answer one that comes alone "
            f"({request.error or NO_TOKENS})"
        )


def _values_of(requests: list[Request], scenario: ScenarioConfig) -> SpeedValues:
    """The metrics of a trial's requests without those that were cut off. A trial may be decided
    before its first answer is whole: then there are none, and its rate misses."""
    if any(request.is_answered for request in requests):
        return serving_values(requests, scenario)
    return SpeedValues()
