"""A load in vLLM's engine in this process, stepped one by one."""

import heapq
import time
from collections.abc import Callable
from typing import Any

from evaluate.measure.engines import Stop
from evaluate.measure.metrics import NOT_SENT, UNFINISHED, Request
from evaluate.measure.workload import Load, PlannedRequest

Add = Callable[[PlannedRequest], str]
"""Adds a request to the engine, and returns the engine's name for it."""


class SteppedRun:
    """One run of a load. Its clock starts before the first request."""

    def __init__(self, engine: Any, load: Load, add: Add, stop: Stop | None) -> None:
        self.engine, self.load, self.add, self.stop = engine, load, add, stop
        self.requests = [Request(0, [], error=NOT_SENT) for _ in load.requests]
        self.waiting: list[tuple[float, int]] = []
        """Requests that begin a conversation: when they are due, and their place."""
        self.following: list[tuple[float, int]] = []
        """The same of conversations in progress, whose last answer is whole."""
        self.next: dict[int, int] = {}
        """The place of the request that waits for an answer, by the place of that."""
        self.running: dict[str, int] = {}
        """Places of running requests, by the engine's name for them."""
        self.in_progress = 0
        for place, planned in enumerate(load.requests):
            if planned.after is None:
                self.waiting.append((planned.arrival_s, place))
            else:
                self.next[planned.after] = place
        heapq.heapify(self.waiting)

    def run(self) -> list[Request]:
        self.start = time.perf_counter()
        while self.waiting or self.following or self.running:
            now = self._now()
            while self.following and self.following[0][0] <= now:
                self._add(*heapq.heappop(self.following), now)
            while self._may_begin and self.waiting[0][0] <= now:
                self.in_progress += 1
                self._add(*heapq.heappop(self.waiting), now)
            if not self.running:
                time.sleep(max(0.0, self._next_due() - now))
            elif self._step():
                self.engine.abort_request(list(self.running))
                break
        return self.requests

    @property
    def _may_begin(self) -> bool:
        """Whether there is another conversation, and a client for it."""
        return bool(self.waiting) and self.in_progress < self.load.at_once

    def _next_due(self) -> float:
        """When the next request is due, while none is running."""
        due = [self.following[0][0]] if self.following else []
        return min([*due, self.waiting[0][0]] if self._may_begin else due)

    def _now(self) -> float:
        return time.perf_counter() - self.start

    def _add(self, due: float, place: int, now: float) -> None:
        request = self.requests[place]
        request.start, request.error = now if self.load.takes_turns else due, UNFINISHED
        self.running[self.add(self.load.requests[place])] = place

    def _step(self) -> bool:
        """Runs one step of the engine. Returns whether the run is decided."""
        outputs = self.engine.step()
        now, decided = self._now(), False
        for output in outputs:
            place = self.running[output.request_id]
            request = self.requests[place]
            is_first = not request.token_times
            request.token_times += [now] * len(output.outputs[0].token_ids)
            request.input_tokens = len(output.prompt_token_ids)
            if output.finished:
                request.error = ""
                del self.running[output.request_id]
                self._go_on(place, now)
            if self.stop is not None and (is_first or output.finished):
                decided = self.stop(request) or decided
        return decided

    def _go_on(self, place: int, now: float) -> None:
        """Takes the conversation's next request, or ends the conversation."""
        if place in self.next:
            following = self.next[place]
            due = now + self.load.requests[following].arrival_s
            heapq.heappush(self.following, (due, following))
        else:
            self.in_progress -= 1
