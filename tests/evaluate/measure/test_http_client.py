"""The client that sends a load over HTTP, against a server whose pace and faults are known."""

import asyncio
from dataclasses import replace

import pytest

from evaluate.measure.engines.http_client import SILENT, Server, last_number, send_load
from evaluate.measure.engines.http_stream import Connections
from evaluate.measure.metrics import NOT_SENT, Request
from evaluate.measure.workload import Load, PlannedRequest
from tests.evaluate.measure.stand_in_server import StandIn, running


def load(count: int, at_once: int | None = None, tokens: int = 3) -> Load:
    requests = [PlannedRequest([7] * (place + 1), tokens) for place in range(count)]
    return Load(requests, at_once or count)


def sent(stand_in: StandIn, planned: Load) -> list[Request]:
    return send_load(Server(stand_in.url, "m", {"Authorization": "Bearer key"}), planned)


def test_every_request_is_answered_in_full_and_in_order() -> None:
    with running(StandIn(first_s=0.01, pace_s=0.002)) as stand_in:
        requests = sent(stand_in, load(40))
    assert [request.input_tokens for request in requests] == list(range(1, 41))
    assert {request.output_tokens for request in requests} == {3}
    assert not any(request.error for request in requests)
    assert all(request.ttft >= 0.01 and request.latency >= 0.014 for request in requests)
    assert {body["max_tokens"] for body in stand_in.bodies} == {3}
    assert "cache_salt" not in stand_in.bodies[0]


def test_a_closed_loop_has_no_more_requests_at_once_than_clients() -> None:
    with running(StandIn(first_s=0.005, together=4)) as stand_in:
        requests = sent(stand_in, load(30, at_once=4))
    assert stand_in.most_running == 4
    assert requests[-1].start > requests[0].start


def test_a_client_plays_a_whole_conversation_and_then_takes_the_next_one() -> None:
    turns = [(place, turn) for place in range(5) for turn in range(3)]
    planned = [
        PlannedRequest([place] * (turn + 1), 2, after=3 * place + turn - 1 if turn else None)
        for place, turn in turns
    ]
    with running(StandIn()) as stand_in:
        sent(stand_in, Load(planned, 1))
    assert [body["prompt"] for body in stand_in.bodies] == [request.prompt for request in planned]
    with running(StandIn(first_s=0.001)) as stand_in:
        sent(stand_in, Load(planned, 2))
    prompts = [body["prompt"] for body in stand_in.bodies]
    for place in range(2, 5):  # when it begins, all but one of those before have ended
        before = prompts[: prompts.index([place])]
        assert sum([other] * 3 in before for other in range(place)) >= place - 1


def test_256_clients_run_at_once() -> None:
    with running(StandIn(pace_s=0.01, together=256)) as stand_in:
        requests = sent(stand_in, load(256))
    assert stand_in.most_running == 256
    assert {request.output_tokens for request in requests} == {3}


def test_requests_come_at_their_times_and_turns_after_their_answers() -> None:
    planned = [
        PlannedRequest([1], 2, arrival_s=0.0, salt="a"),
        PlannedRequest([1, 2], 2, arrival_s=0.03, after=0, salt="a"),
        PlannedRequest([3], 2, arrival_s=0.02, salt="b"),
    ]
    with running(StandIn(first_s=0.01, pace_s=0.01)) as stand_in:
        first, second, third = sent(stand_in, Load(planned, 3))
    assert (first.start, third.start) == (0.0, 0.02)
    assert first.token_times[-1] + 0.03 <= second.start < second.token_times[0]
    salts = {tuple(body["prompt"]): body["cache_salt"] for body in stand_in.bodies}
    assert salts == {(1,): "a", (1, 2): "a", (3,): "b"}


def test_no_request_is_sent_before_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    sleep = asyncio.sleep

    async def wake_early(seconds: float) -> None:
        await sleep(seconds / 2)

    planned = [
        PlannedRequest([1], 2, arrival_s=0.04),
        PlannedRequest([1, 2], 2, arrival_s=0.04, after=0),
    ]
    with running(StandIn()) as stand_in:
        monkeypatch.setattr("evaluate.measure.engines.http_client.asyncio.sleep", wake_early)
        requests = sent(stand_in, Load(planned, 2))
        monkeypatch.undo()
    assert all(request.send_delay >= 0 for request in requests)
    assert all(request.token_times[0] >= request.start for request in requests)


def test_faults_of_the_server_are_errors_of_single_requests() -> None:
    with running(StandIn(refused=2)) as stand_in:
        requests = sent(stand_in, load(5))
    assert [request.error for request in requests if request.error] == ["HTTP 503: busy"] * 2
    assert sum(request.is_answered for request in requests) == 3
    with running(StandIn(broken=1)) as stand_in:
        requests = sent(stand_in, load(3))
    (broken,) = [request.error for request in requests if request.error]  # whichever came first
    assert broken.startswith("the server failed: data: ")
    assert "the engine died" in broken
    assert sum(request.is_answered for request in requests) == 2
    nobody = StandIn(port=9)
    (request,) = sent(nobody, load(1))
    assert request.error.startswith("ConnectionRefusedError")


def test_a_server_that_sends_nothing_fails_what_waits_for_it() -> None:
    with running(StandIn(first_s=600.0)) as stand_in:
        requests = sent(stand_in, replace(load(3), silence_s=0.2))
    assert [request.error for request in requests] == [f"TimeoutError: {SILENT} 0 s"] * 3
    slow = StandIn(pace_s=0.2)
    with running(slow) as stand_in:  # each answer takes longer than the limit
        requests = sent(stand_in, replace(load(3, tokens=8), silence_s=1.0))
    assert [request.output_tokens for request in requests] == [8] * 3
    with running(StandIn(slots=1, pace_s=0.3)) as stand_in:  # as in a full engine
        requests = sent(stand_in, replace(load(3, tokens=5), silence_s=1.0))
    assert all(request.is_answered for request in requests)


def test_a_run_that_is_decided_ends_early() -> None:
    planned = [PlannedRequest([1], 2, arrival_s=60.0 * place) for place in range(3)]
    with running(StandIn()) as stand_in:
        server = Server(stand_in.url, "m", {})
        requests = send_load(server, Load(planned, 3), stop=lambda request: request.is_answered)
    assert len(stand_in.bodies) == 1
    assert [request.error for request in requests[1:]] == [NOT_SENT] * 2


def test_connections_are_open_before_the_clock_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    open_connections = Connections.open

    async def count(connections: Connections, number: int) -> None:
        await open_connections(connections, number)
        opened.append((number, len(connections.idle)))

    monkeypatch.setattr(Connections, "open", count)
    spread = [PlannedRequest([1], 2, arrival_s=0.01 * place) for place in range(3)]
    with running(StandIn()) as stand_in:
        sent(stand_in, load(30, at_once=4))
        sent(stand_in, load(6))
        sent(stand_in, Load(spread, 3))
    assert opened == [(4, 4), (6, 6), (1, 1)]
    (request,) = sent(StandIn(port=9), load(1))
    assert opened[-1] == (1, 0)  # no failure of its own
    assert request.error.startswith("ConnectionRefusedError")


def test_numbers_are_found_in_what_arrived() -> None:
    key = b'"completion_tokens":'
    assert last_number(b'{"completion_tokens":1}\n{"completion_tokens": 27}', key) == 27
    assert last_number(b'{"text":"\\"completion_tokens\\":5"}', key) is None
    assert last_number(b"", key) is None


def test_a_load_may_limit_how_long_an_answer_takes() -> None:
    with running(StandIn(together=2)) as stand_in:  # the first request waits for another one
        (request,) = sent(stand_in, replace(load(1), most_s=0.2))
    assert request.error == "TimeoutError: the server did not answer in time"
