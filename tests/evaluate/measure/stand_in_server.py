"""A server that answers as vLLM's does, at a pace that a test sets. It shows what a client adds,
and forces faults that a real server has seldom.

`python -m tests.evaluate.measure.stand_in_server FIRST_S PACE_S` prints its port and runs until it
is ended.
"""

import asyncio
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import uvloop

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
LONGEST_WAIT_S = 60.0


@dataclass
class StandIn:
    """Its pace and faults, and what it was asked."""

    first_s: float = 0.0
    pace_s: float = 0.0
    slots: int = 10**6
    """Answers at once; others wait, as in a saturated engine."""
    refused: int = 0
    """How many of the first requests get an HTTP error."""
    broken: int = 0
    """How many of the first answers end in an error."""
    together: int = 0
    """So many requests have to be here before the first is answered."""
    port: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    running: int = 0
    most_running: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, ready: threading.Event) -> None:
        self.gate, self.all_here = asyncio.Semaphore(self.slots), asyncio.Event()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0, backlog=2048)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await asyncio.Event().wait()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"GET"):
                    _whole(writer, {"data": [{"id": "stand-in"}]} if b"/models" in head else None)
                    continue
                length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
                body = json.loads(await reader.readexactly(length))
                if not body.get("stream"):
                    _whole(writer, {"choices": [{"text": body["prompt"]}]})
                    continue
                self.bodies.append(body)
                await self._answer(body, len(self.bodies), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _answer(
        self, body: dict[str, Any], number: int, writer: asyncio.StreamWriter
    ) -> None:
        if number <= self.refused:
            writer.write(b"HTTP/1.1 503 Unavailable\r\nContent-Length: 4\r\n\r\nbusy")
            return
        async with self.gate:
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            await self._wait_for_others()
            begin = time.perf_counter()
            writer.write(HEAD)
            for token in range(1, body["max_tokens"] + 1):
                await _sleep_until(begin + self.first_s + (token - 1) * self.pace_s)
                if number <= self.broken:
                    _chunk(writer, {"error": {"message": "the engine died"}})
                    break
                usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": token}
                choice = {"index": 0, "text": " word", "logprobs": None, "finish_reason": None}
                _chunk(writer, {"id": "cmpl-1", "model": "m", "choices": [choice], "usage": usage})
            self.running -= 1
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n" + END)

    async def _wait_for_others(self) -> None:
        if self.running >= self.together:
            self.all_here.set()
        with suppress(TimeoutError):  # the test sees that they did not come
            await asyncio.wait_for(self.all_here.wait(), LONGEST_WAIT_S)


async def _sleep_until(due: float) -> None:
    """uvloop counts whole milliseconds, and may wake up early."""
    await asyncio.sleep(0)
    while (left := due - time.perf_counter()) > 0:
        await asyncio.sleep(left)


def _whole(writer: asyncio.StreamWriter, content: dict[str, Any] | None) -> None:
    data = json.dumps(content).encode() if content is not None else b""
    head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)


def _chunk(writer: asyncio.StreamWriter, content: dict[str, Any]) -> None:
    data = f"data: {json.dumps(content, separators=(',', ':'))}\n\n".encode()
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


@contextmanager
def running(stand_in: StandIn) -> Iterator[StandIn]:
    """The server in a thread of this process."""
    ready, loop = threading.Event(), uvloop.new_event_loop()
    serving = loop.create_task(stand_in.serve(ready))
    thread = threading.Thread(target=_run, args=(loop, serving), daemon=True)
    thread.start()
    assert ready.wait(LONGEST_WAIT_S)
    try:
        yield stand_in
    finally:
        loop.call_soon_threadsafe(serving.cancel)
        thread.join(LONGEST_WAIT_S)
        loop.close()


def _run(loop: asyncio.AbstractEventLoop, serving: "asyncio.Task[None]") -> None:
    with suppress(asyncio.CancelledError):
        loop.run_until_complete(serving)
    loop.run_until_complete(_cancel_connections())


async def _cancel_connections() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


if __name__ == "__main__":
    started = StandIn(float(sys.argv[1]), float(sys.argv[2]))
    threading.Thread(target=uvloop.run, args=(started.serve(event := threading.Event()),)).start()
    event.wait()
    print(started.port, flush=True)
