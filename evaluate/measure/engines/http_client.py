"""Sends a load to an OpenAI-compatible server over streaming HTTP, and times every token."""

import asyncio
import json
import re
import time
from dataclasses import dataclass
from typing import Any

import uvloop

from evaluate.measure.engines import Stop
from evaluate.measure.engines.http_stream import Connections
from evaluate.measure.metrics import NOT_SENT, UNFINISHED, Request
from evaluate.measure.workload import Load, PlannedRequest

SECONDS_FOR_A_RUN = 3600
ANSWERED, ASKED = b'"completion_tokens":', b'"prompt_tokens":'
LOOKS_IN_SILENCE = 8  # until a silence is long enough to be a fault
NO_ANSWER = "the server did not answer in time"
SILENT = "the server sent nothing for"
NUMBER = re.compile(rb"\s*(\d+)")
# A text cannot hold these: JSON escapes its quotes.
ERROR = b'data: {"error"'


@dataclass
class Server:
    """Where requests are sent."""

    url: str
    model: str
    headers: dict[str, str]


def send_load(server: Server, load: Load, stop: Stop | None = None) -> list[Request]:
    """Sends each request at its time, and waits for all answers, or until `stop` says that the rest
    does not matter. Returns a request for each planned one."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_Run(server, load, stop).send())


class _Run:
    """One run of a load. Its clock starts before the first request."""

    def __init__(self, server: Server, load: Load, stop: Stop | None) -> None:
        self.server, self.load, self.stop = server, load, stop
        self.takes_turns, self.is_open = load.takes_turns, load.is_open
        self.most_s = SECONDS_FOR_A_RUN if load.most_s is None else load.most_s
        self.gate = asyncio.Semaphore(load.at_once)
        self.stopped = asyncio.Event()
        self.requests = [Request(0, [], error=NOT_SENT) for _ in load.requests]
        self.bodies = [self._body(planned) for planned in load.requests]
        self.connections = Connections(server.url, server.headers)
        self.begin = 0.0
        self.waiting: set[asyncio.Timeout] = set()
        """The limits of the requests that are being answered."""
        self.heard = 0.0
        """When the server last sent something, or had nothing to send."""
        self.is_silent = False

    async def send(self) -> list[Request]:
        await self.connections.open(self._at_begin())
        self.begin = time.perf_counter()
        conversations = self.load.conversations
        tasks = [asyncio.create_task(self._converse(places)) for places in conversations]
        watching = [asyncio.create_task(self._cancel_when_stopped(tasks))]
        if self.load.silence_s is not None:
            watching.append(asyncio.create_task(self._end_silence(self.load.silence_s)))
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for watcher in watching:
            watcher.cancel()
        self.connections.close()
        for outcome in outcomes:
            if isinstance(outcome, Exception):  # not a cancelled request
                raise outcome
        return self.requests

    def _at_begin(self) -> int:
        """Requests that are sent at once at the beginning. Connecting so many takes tens of
        milliseconds, which must not count as the server's."""
        due = sum(
            planned.arrival_s == 0 and planned.after is None for planned in self.load.requests
        )
        return min(due, self.load.at_once)

    async def _cancel_when_stopped(self, tasks: list["asyncio.Task[None]"]) -> None:
        await self.stopped.wait()
        for task in tasks:
            task.cancel()

    async def _end_silence(self, most_s: float) -> None:
        """Fails what waits for a server that has sent nothing for so long."""
        while True:
            await asyncio.sleep(most_s / LOOKS_IN_SILENCE)
            if not self.waiting:
                self.heard = self._now()
            elif self._now() - self.heard > most_s:
                self.is_silent = True
                for limit in self.waiting:
                    limit.reschedule(asyncio.get_running_loop().time())

    async def _converse(self, places: list[int]) -> None:
        """Sends the requests of a conversation, each after the answer before. A client of a closed
        loop is held for all of them."""
        due = self.load.requests[places[0]].arrival_s
        await self._wait_until(due)
        async with self.gate:
            await self._send_one(places[0], due)
            for place in places[1:]:
                due = self._now() + self.load.requests[place].arrival_s
                await self._wait_until(due)
                await self._send_one(place, due)

    async def _wait_until(self, due: float) -> None:
        """uvloop counts whole milliseconds, and may wake up early: a request sent before its time
        could have a first token before its time, too."""
        await asyncio.sleep(due - self._now())
        while (left := due - self._now()) > 0:
            await asyncio.sleep(left)

    async def _send_one(self, place: int, due: float) -> None:
        request, sent = self.requests[place], self._now()
        request.start = sent if self.takes_turns else due
        request.send_delay = sent - due if self.is_open else 0.0
        request.error = UNFINISHED
        if not self.waiting:
            self.heard = sent
        try:
            async with asyncio.timeout(self.most_s) as limit:
                self.waiting.add(limit)
                try:
                    request.error = await self._stream(self.bodies[place], request)
                finally:
                    self.waiting.discard(limit)
        except (OSError, TimeoutError) as error:
            request.error = f"{type(error).__name__}: {str(error) or self._why_late()}"
        if request.error:
            request.token_times = []
        self.bodies[place] = b""
        self._consider(request)

    async def _stream(self, body: bytes, request: Request) -> str:
        """Reads the answer. Returns the error; empty without one. The counts are searched in what
        arrived, because parsing every line takes most of the time with hundreds of clients."""
        rest, failure = b"", ""

        def on_block(block: bytes) -> None:
            nonlocal rest, failure
            now = self.heard = self._now()
            lines, _, rest = (rest + block).rpartition(b"\n")
            if ERROR in lines:
                failure = _text_of_error(lines)
            count = last_number(lines, ANSWERED)
            if count is None:
                return
            is_first = not request.token_times
            request.token_times += [now] * (count - request.output_tokens)
            if is_first:
                request.input_tokens = last_number(lines, ASKED) or 0
                self._consider(request)

        answer = await self.connections.post(body, on_block)
        if answer.status != 200:
            return f"HTTP {answer.status}: {answer.error_text[:200].decode(errors='replace')}"
        return failure

    def _why_late(self) -> str:
        return f"{SILENT} {self.load.silence_s:.0f} s" if self.is_silent else NO_ANSWER

    def _consider(self, request: Request) -> None:
        if self.stop is not None and self.stop(request):
            self.stopped.set()

    def _now(self) -> float:
        return time.perf_counter() - self.begin

    def _body(self, planned: PlannedRequest) -> bytes:
        """The request's JSON, made before the clock starts."""
        body: dict[str, Any] = {
            "model": self.server.model,
            "prompt": planned.prompt,
            "max_tokens": planned.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        if planned.salt:
            body["cache_salt"] = planned.salt
        return json.dumps(body).encode()


def last_number(text: bytes, key: bytes) -> int | None:
    """The number after the key's last occurrence; None without one."""
    place = text.rfind(key)
    if place < 0:
        return None
    number = NUMBER.match(text, place + len(key))
    return int(number[1]) if number else None


def _text_of_error(lines: bytes) -> str:
    line = lines[lines.index(ERROR) :].splitlines()[0]
    return f"the server failed: {line.decode(errors='replace')[:200]}"
