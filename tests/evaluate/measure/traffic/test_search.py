"""Where a capacity search begins, in a server that is modelled: answers of one length, in slots."""

import heapq
from dataclasses import replace

import pytest

from conf.errors import QuantlineError, environment_failure
from conf.schema.load import ScenarioConfig
from conf.schema.traffic import CapacityConfig, TrafficLoad
from evaluate.measure.engines import Stop
from evaluate.measure.gpu_watch import Watched
from evaluate.measure.metrics import NOT_SENT, UNFINISHED, Request
from evaluate.measure.traffic import search
from evaluate.measure.traffic.search import Misses, Searcher, TrialMeasured, WatchedRun, answer_rate
from evaluate.measure.validity import Observed
from evaluate.measure.workload import Load, PlannedRequest
from evaluate.results.capacity_search import Limit, Trial, found
from evaluate.results.late_requests import allowed_misses

SLOTS = 8
CAPACITY = CapacityConfig(share=0.9, seconds=10.0, least_requests=100)


class Model:
    """A server whose answers take `seconds_each`, and that gives `SLOTS` of them at once."""

    def __init__(self, seconds_each: float, **options: float) -> None:
        self.seconds_each, self.loads = seconds_each, list[Load]()
        self.measured: list[TrialMeasured] = []
        scenario = ScenarioConfig(
            input_tokens=2, output_tokens=2, rate=1.0, requests=100,
            ttft_ms=3e3 * seconds_each, tpot_ms=3e3 * seconds_each,
            capacity=replace(CAPACITY, **options),  # type: ignore[arg-type]
        )  # fmt: skip
        self.patience_s, self.is_down = float("inf"), False
        """It refuses requests that would wait for longer."""
        self.pauses: list[float] = []
        self.searcher = Searcher(scenario, self.load_at, self.run, self.measured.append)
        self.searcher.pause = self.pauses.append

    @property
    def limit(self) -> float:
        return SLOTS / self.seconds_each

    @property
    def rates(self) -> list[float]:
        return [measured.trial.rate for measured in self.measured]

    def load_at(self, scenario: ScenarioConfig) -> Load:
        assert scenario.rate is not None
        times = [place / scenario.rate for place in range(scenario.count)]
        return Load([PlannedRequest([1, 2], 2, time) for time in times], len(times))

    def run(self, load: Load, stop: Stop | None) -> WatchedRun:
        """Each request is shown at its first token and when it is whole, in the order of time."""
        self.loads.append(load)
        requests = [Request(2, [], planned.arrival_s, NOT_SENT) for planned in load.requests]
        slots, moments = [0.0] * SLOTS, list[tuple[float, int]]()
        for place, request in enumerate(requests):
            free = heapq.heappop(slots)
            begin = max(request.start, free)
            if self.is_down or begin - request.start > self.patience_s:
                heapq.heappush(slots, free)
                moments.append((request.start, place))
                continue
            moments += [(begin + self.seconds_each * part, place) for part in (0.5, 1)]
            heapq.heappush(slots, begin + self.seconds_each)
        for moment, place in sorted(moments):
            request = requests[place]
            if moment > request.start:
                request.token_times.append(moment)
                request.error = "" if request.output_tokens == 2 else UNFINISHED
            else:
                request.error = "HTTP 503: busy"
            if stop is not None and stop(request):
                break
        return WatchedRun(requests, Observed(), Watched())


@pytest.mark.parametrize("seconds_each", [0.001, 0.3, 2.0])
def test_it_begins_where_a_burst_is_answered(seconds_each: float) -> None:
    """However fast a server is, its search takes about as many trials."""
    server = Model(seconds_each)
    server.searcher.search([], None)
    burst = server.loads[0]
    assert len(burst.requests) == CAPACITY.least_requests
    assert {request.arrival_s for request in burst.requests} == {0.0}
    end = found([measured.trial for measured in server.measured], CAPACITY.resolution)
    assert end is not None
    assert server.limit / 2 < end.rate < server.limit * 2
    assert server.limit / 2 < server.rates[0] < server.limit * 2
    assert len(server.measured) <= 8


@pytest.mark.parametrize(("steady", "holds"), [(search.STEADY, True), (0.0, False)])
def test_requests_arrive_for_longer_than_one_of_them_takes(
    steady: float, holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In ten seconds a server of eight slots is not even full, where an answer takes thirty."""
    monkeypatch.setattr(search, "STEADY", steady)
    server = Model(30.0, least_requests=10)
    server.searcher.search([], None)
    end = found([measured.trial for measured in server.measured], CAPACITY.resolution)
    assert end is not None
    assert (end.rate < 1.5 * server.limit) == holds


def test_and_for_longer_than_a_conversation_with_its_pauses() -> None:
    server = Model(0.3)
    server.searcher.scenario.traffic = TrafficLoad(requests=400, conversations=100, pause_s=20.0)
    server.searcher.search([], None)
    for measured in server.measured:
        if measured.trial.meets:
            latency_s = measured.values.request_latency_mean_s
            assert latency_s is not None
            arriving_s = measured.scenario.count / measured.trial.rate
            assert arriving_s >= 3.6 * (4 * latency_s + 3 * 20)


def test_a_given_rate_needs_no_burst() -> None:
    server = Model(0.3, first_rate=5.0)
    server.searcher.search([], None)
    assert server.rates[:2] == [5.0, 10.0]
    assert len(server.loads) == len(server.measured)


@pytest.mark.parametrize(("trials", "expected"), [([Trial(20.0, True)], None), ([], 24.0)])
def test_neither_does_a_search_that_goes_on_or_follows_another(
    trials: list[Trial], expected: float | None
) -> None:
    server = Model(0.3)
    server.searcher.search(trials, expected)
    assert len(server.loads) == len(server.measured)
    assert server.rates[0] == pytest.approx(24.0)


def test_the_rate_of_a_burst_leaves_its_last_answers_out() -> None:
    load = Load([PlannedRequest([1], 2)] * 100, 100)
    whole = [Request(1, [0.1 * place + 0.05, 0.1 * place + 0.1]) for place in range(99)]
    late = Request(1, [0.1, 500.0])
    assert answer_rate(load, [*whole, late], 30.0) == pytest.approx(10, rel=0.02)


def test_a_burst_is_judged_before_its_first_answer_is_whole() -> None:
    load = Load([PlannedRequest([1], 100)] * 50, 50)
    begun = [Request(1, [0.5, 1.0], error=UNFINISHED) for _ in range(50)]
    assert answer_rate(load, begun, 1.0) == pytest.approx(1.0)
    assert answer_rate(load, [Request(1, [], error=UNFINISHED)] * 50, 30.0) == pytest.approx(1 / 30)


@pytest.mark.parametrize(
    ("ttft_ms", "tpot_ms", "missed"),
    [(200.0, 1e6, Limit.FIRST_TOKEN), (1e6, 100.0, Limit.FURTHER_TOKENS)],
)
def test_a_trial_says_which_target_its_late_requests_missed(
    ttft_ms: float, tpot_ms: float, missed: Limit
) -> None:
    """A first token takes 150 ms without waiting, the second one as long after it."""
    server = Model(0.3, first_rate=2 * SLOTS / 0.3)
    server.searcher.scenario.ttft_ms, server.searcher.scenario.tpot_ms = ttft_ms, tpot_ms
    measured = server.searcher._steady_trial(2 * SLOTS / 0.3)
    assert not measured.trial.meets
    values = measured.values
    late = {
        Limit.FIRST_TOKEN: values.late_first_tokens,
        Limit.FURTHER_TOKENS: values.late_further_tokens,
    }
    assert late.pop(missed) == 1 + int(measured.scenario.count * (1 - CAPACITY.share) + 1e-9)
    assert set(late.values()) == {0}


def test_a_target_that_cannot_be_met_is_missed_at_every_rate() -> None:
    """The first tokens of the first requests are too late, and decide a trial before any answer is
    whole."""
    server = Model(0.3, first_rate=100.0, share=0.99, seconds=1.0, least_requests=20)
    server.searcher.scenario.ttft_ms = 100.0
    server.searcher.search([], None)
    end = found([measured.trial for measured in server.measured], CAPACITY.resolution)
    assert end is not None
    assert end.low == 0
    assert {len(measured.invalid) for measured in server.measured} == {0}
    first, *_ = server.measured
    assert first.values.output_tokens is None
    assert first.values.cut_off_requests == first.scenario.count


def test_a_server_that_sheds_load_has_a_capacity() -> None:
    server = Model(0.3)
    server.patience_s = 0.0
    server.searcher.search([], None)
    end = found([measured.trial for measured in server.measured], CAPACITY.resolution)
    assert end is not None
    assert server.limit / 2 < end.rate < server.limit * 2
    assert {len(measured.invalid) for measured in server.measured} == {0}
    missed = [measured for measured in server.measured if not measured.trial.meets]
    assert missed
    for measured in missed:
        values, count = measured.values, measured.scenario.count
        assert values.failed_requests is not None
        assert values.cut_off_requests is not None
        assert values.failed_requests > count * (1 - CAPACITY.share)
        ended = count - values.cut_off_requests
        assert values.failed_share == pytest.approx(values.failed_requests / ended)
        assert measured.error == "HTTP 503: busy"
    assert set(server.pauses) == {0}  # one that came alone was answered at once


def test_a_server_that_answers_nothing_has_failed() -> None:
    server = Model(0.3, first_rate=5.0)
    server.is_down = True
    with pytest.raises(QuantlineError, match="does not answer one that comes alone"):
        server.searcher.search([], None)
    assert server.measured == []
    assert tuple(server.pauses) == search.PAUSES_S
    server.searcher.death = lambda: environment_failure("the engine died")
    with pytest.raises(QuantlineError, match="the engine died"):
        server.searcher.search([], None)


def test_a_request_that_fails_after_a_late_token_counts_once() -> None:
    scenario = Model(0.3).searcher.scenario
    misses = Misses(scenario, allowed=5)
    request = Request(1, [5.0], error=UNFINISHED)
    misses.stop(request)
    assert misses.by_request == {id(request): Limit.FIRST_TOKEN}
    request.token_times, request.error = [], "HTTP 503: busy"
    misses.stop(request)
    assert misses.by_request == {id(request): Limit.FAILURES}
    assert (misses.count, misses.error) == (1, "HTTP 503: busy")


def test_a_server_that_hangs_has_failed_after_a_minute() -> None:
    class Hanging(Model):
        """A request that comes alone gets neither an answer nor an error."""

        now = 0.0

        def run(self, load: Load, stop: Stop | None) -> WatchedRun:
            if len(load.requests) == 1:
                assert load.most_s is not None
                self.now += load.most_s
            return super().run(load, stop)

    server = Hanging(0.3, first_rate=5.0)
    server.is_down, server.searcher.clock = True, lambda: server.now
    with pytest.raises(QuantlineError, match="does not answer one that comes alone"):
        server.searcher.search([], None)
    assert server.now == search.SECONDS_ALONE
    assert server.pauses == [0]


def test_the_answer_of_a_request_that_comes_alone_is_short() -> None:
    server = Model(0.3)
    server.searcher._check_server(Load([PlannedRequest([1, 2], 4000, 7.0, after=3)], 9), "busy")
    (alone,) = server.loads
    assert alone.requests == [PlannedRequest([1, 2], search.TOKENS_ALONE)]
    assert (alone.at_once, alone.most_s) == (1, search.SECONDS_ALONE)


@pytest.mark.parametrize("seconds_each", [0.3, 8.0, 40.0])
def test_a_trial_of_the_curve_takes_as_long_as_one_at_the_end_of_the_search(
    seconds_each: float,
) -> None:
    """At an eighth of the rate, the least requests of a trial would take eight times as long."""
    server = Model(seconds_each)
    server.searcher.curve = 4
    server.searcher.search([], None)
    end = found([measured.trial for measured in server.measured], CAPACITY.resolution)
    assert end is not None
    arriving_s = [measured.scenario.count / measured.trial.rate for measured in server.measured]
    of_curve = [measured.trial.of_curve for measured in server.measured]
    searching_s, curve_s = (
        [seconds for seconds, is_curve in zip(arriving_s, of_curve, strict=True) if is_curve == own]
        for own in (False, True)
    )
    assert len(curve_s) == 4
    assert max(curve_s) <= 1.1 * max(searching_s)
    assert min(curve_s) >= 0.9 * min(CAPACITY.least_requests / end.rate, *searching_s)


def test_a_trial_of_the_curve_is_measured_to_its_end() -> None:
    """It decides nothing, so there is nothing to end it early."""
    server = Model(0.3)
    rate = 4 * server.limit
    cut_off = [
        server.searcher._trial(rate, 100, of_curve).values.cut_off_requests
        for of_curve in (False, True)
    ]
    assert cut_off[0]
    assert cut_off[1] == 0


def test_the_slowest_requests_of_a_trial_decide_as_the_search_does() -> None:
    """Under its own targets, and for whole trials under any others."""
    server = Model(0.3)
    server.patience_s = 2.0
    server.searcher.search([], None)
    assert {measured.trial.meets for measured in server.measured} == {True, False}
    for measured in server.measured:
        scenario, failed = measured.scenario, measured.values.failed_requests or 0
        allowed = allowed_misses(scenario.count, CAPACITY.share)
        assert scenario.ttft_ms is not None
        assert scenario.tpot_ms is not None
        for factor in (1.0, 0.7, 0.4, 0.1):
            ttft, tpot = factor * scenario.ttft_ms / 1e3, scenario.tpot_ms / 1e3
            late = failed + sum(a > ttft or b > tpot for a, b in measured.slowest_s)
            answered = [one for one in measured.run.requests if one.is_answered]
            every = failed + sum(one.ttft > ttft or (one.tpot or 0) > tpot for one in answered)
            if factor == 1.0:
                assert (late <= allowed) == measured.trial.meets
            if not measured.values.cut_off_requests:
                assert (late <= allowed) == (every <= allowed)
