"""Loads in an engine that is stepped, with a stand-in that answers one token a step."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from evaluate.measure.engines.vllm_steps import SteppedRun
from evaluate.measure.metrics import NOT_SENT, UNFINISHED
from evaluate.measure.workload import Load, PlannedRequest


@dataclass
class SteppedEngine:
    """Gives each running request one token in each step."""

    running: dict[str, tuple[PlannedRequest, int]] = field(default_factory=dict)
    added: list[list[int]] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    most_running: int = 0

    def add(self, planned: PlannedRequest) -> str:
        name = str(len(self.added))
        self.added.append(planned.prompt)
        self.running[name] = (planned, 0)
        return name

    def step(self) -> list[Any]:
        self.most_running = max(self.most_running, len(self.running))
        outputs = []
        for name, (planned, done) in list(self.running.items()):
            finished = done + 1 == planned.output_tokens
            outputs.append(
                SimpleNamespace(
                    request_id=name,
                    outputs=[SimpleNamespace(token_ids=[5])],
                    prompt_token_ids=planned.prompt,
                    finished=finished,
                )
            )
            self.running[name] = (planned, done + 1)
            if finished:
                del self.running[name]
        return outputs

    def abort_request(self, names: list[str]) -> None:
        self.aborted = names


def test_turns_follow_their_answers_and_clients_take_turns() -> None:
    engine = SteppedEngine()
    planned = [
        PlannedRequest([1], 3),
        PlannedRequest([1, 2], 2, after=0),
        PlannedRequest([7], 1),
        PlannedRequest([8], 1),
    ]
    requests = SteppedRun(engine, Load(planned, 2), engine.add, None).run()
    assert engine.most_running == 2
    assert [request.output_tokens for request in requests] == [3, 2, 1, 1]
    assert [request.input_tokens for request in requests] == [1, 2, 1, 1]
    assert requests[1].start >= requests[0].token_times[-1]
    assert all(request.is_answered for request in requests)


def test_a_client_plays_a_whole_conversation_and_then_takes_the_next_one() -> None:
    engine = SteppedEngine()
    planned = [
        PlannedRequest([1], 3),
        PlannedRequest([1, 2], 2, after=0),
        PlannedRequest([5], 1),
        PlannedRequest([5, 6], 1, arrival_s=0.001, after=2),
        PlannedRequest([7], 1),
        PlannedRequest([7, 8], 1, after=4),
    ]
    SteppedRun(engine, Load(planned, 1), engine.add, None).run()
    assert engine.added == [request.prompt for request in planned]
    engine = SteppedEngine()
    requests = SteppedRun(engine, Load(planned, 2), engine.add, None).run()
    assert engine.most_running == 2
    third = engine.added.index([7])
    assert any(third > engine.added.index(last) for last in ([1, 2], [5, 6]))
    assert all(request.is_answered for request in requests)


def test_requests_are_added_at_their_times() -> None:
    engine = SteppedEngine()
    planned = [PlannedRequest([1], 1, arrival_s=0.02), PlannedRequest([2], 1, arrival_s=0.01)]
    first, second = SteppedRun(engine, Load(planned, 2), engine.add, None).run()
    assert engine.added == [[2], [1]]
    assert (first.start, second.start) == (0.02, 0.01)
    assert first.ttft >= 0


def test_a_run_that_is_decided_is_cut_off() -> None:
    engine = SteppedEngine()
    planned = [PlannedRequest([1], 1), PlannedRequest([2], 9), PlannedRequest([3], 9, after=1)]
    run = SteppedRun(engine, Load(planned, 3), engine.add, lambda request: request.is_answered)
    requests = run.run()
    assert [request.error for request in requests] == ["", UNFINISHED, NOT_SENT]
    assert engine.aborted == ["1"]
