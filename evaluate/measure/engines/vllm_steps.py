"""A load in vLLM's engine in this process, stepped one by one."""

import heapq
import time
from collections import defaultdict
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
        """Requests that nothing holds back but their time: when they are due, and their place."""
        self.held_back: dict[int, list[int]] = defaultdict(list)
        """Requests that wait for the answer of another one."""
        self.running: dict[str, int] = {}
        """Places of running requests, by the engine's name for them."""
        for place, planned in enumerate(load.requests):
            if planned.after is None:
                self.waiting.append((planned.arrival_s, place))
            else:
                self.held_back[planned.after].append(place)
        heapq.heapify(self.waiting)

    def run(self) -> list[Request]:
        self.start = time.perf_counter()
        while self.waiting or self.running:
            now = self._now()
            while self.waiting and len(self.running) < self.load.at_once:
                if self.waiting[0][0] > now:
                    break
                self._add(*heapq.heappop(self.waiting), now)
            if not self.running:
                time.sleep(max(0.0, self.waiting[0][0] - now))
            elif self._step():
                self.engine.abort_request(list(self.running))
                break
        return self.requests

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
                for following in self.held_back.pop(place, []):
                    due = now + self.load.requests[following].arrival_s
                    heapq.heappush(self.waiting, (due, following))
            if self.stop is not None and (is_first or output.finished):
                decided = self.stop(request) or decided
        return decided
