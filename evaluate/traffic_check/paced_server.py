"""A stand-in for an OpenAI server: it streams tokens at a fixed pace, and records what it wrote.

Times to the first token are spread between half and one and a half of their mean, so that requests
do not end together. In steps, as an engine works, all requests get their tokens at the same time.
"""

import asyncio
import heapq
import json
import math
import time
from dataclasses import asdict, dataclass, field

import httptools
import uvloop

from conf.process.inside import Send, run_program
from evaluate.traffic_check.programs import PACED_SERVER, Listening, Pace

MODEL = "paced"
RECORD = "/record"  # what was written since the last call
GOLDEN = 0.6180339887  # its multiples, without their whole part, are spread evenly
LONGEST_SLEEP = 0.002  # seconds; a new request may be due before all others
HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
TOKEN = (
    b'data: {"id":"cmpl-0123456789abcdef0123456789abcdef","object":"text_completion",'
    b'"created":1700000000,"model":"paced","choices":[{"index":0,"text":" word","logprobs":null,'
    b'"finish_reason":null,"stop_reason":null,"token_ids":null}]%s}\n\n'
)
LAST = b'data: {"id":"cmpl-0","object":"text_completion","choices":[]%s}\n\n'
USAGE = b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}'


@dataclass
class Record:
    """The answers that have ended: when each request was received, its TTFT and its TPOT, in
    seconds."""

    answers: list[tuple[float, float, float]] = field(default_factory=list)


@dataclass
class Answer:
    """A request that is being answered."""

    transport: asyncio.Transport
    prompt_tokens: int
    tokens: int
    shows_usage: bool
    """Each token comes with the counts."""
    received: float
    written: int = 0
    first: float = 0.0

    def write_token(self, now: float) -> None:
        self.first = self.first or now
        self.written += 1
        chunk = TOKEN % (self._usage() if self.shows_usage else b"")
        if self.written == self.tokens:
            chunks = (chunk, LAST % self._usage(), b"data: [DONE]\n\n")
            self.transport.write(b"".join(map(framed, chunks)) + b"0\r\n\r\n")
        else:
            self.transport.write(framed(chunk))

    def _usage(self) -> bytes:
        total = self.prompt_tokens + self.written
        return USAGE % (self.prompt_tokens, total, self.written)


def framed(chunk: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(chunk), chunk)


class Engine:
    """Writes each token when it is due."""

    def __init__(self, pace: Pace) -> None:
        self.mean_ttft, self.step = pace.ttft_ms / 1e3, pace.tpot_ms / 1e3
        self.in_steps = pace.in_steps
        self.due: list[tuple[float, int, Answer]] = []
        """A heap: when the next token of each answer is due, and the answer's number."""
        self.received = 0
        self.record = Record()

    def restart(self) -> None:
        """Begins a new record, and the spread of times from its start: all runs get the same."""
        self.record, self.received = Record(), 0

    def add(self, transport: asyncio.Transport, body: bytes) -> None:
        request = json.loads(body)
        now = time.perf_counter()
        self.received += 1
        due = now + self.mean_ttft * (0.5 + self.received * GOLDEN % 1)
        if self.in_steps:
            due = math.ceil(due / self.step) * self.step
        prompt = request["prompt"]
        shown = request.get("stream_options", {}).get("continuous_usage_stats", False)
        count = len(prompt if isinstance(prompt, list) else prompt.split())
        transport.write(HEAD)
        answer = Answer(transport, count, request["max_tokens"], shown, now)
        heapq.heappush(self.due, (due, id(answer), answer))

    async def run(self) -> None:
        while True:
            now = time.perf_counter()
            wait = min(self.due[0][0] - now, LONGEST_SLEEP) if self.due else LONGEST_SLEEP
            await asyncio.sleep(wait)
            self._write_tokens(time.perf_counter())

    def _write_tokens(self, now: float) -> None:
        while self.due and self.due[0][0] <= now:
            due, number, answer = self.due[0]
            if answer.transport.is_closing():
                heapq.heappop(self.due)
                continue
            answer.write_token(time.perf_counter())
            if answer.written < answer.tokens:
                heapq.heapreplace(self.due, (due + self.step, number, answer))
                continue
            heapq.heappop(self.due)
            pace = (time.perf_counter() - answer.first) / max(1, answer.tokens - 1)
            self.record.answers.append((answer.received, answer.first - answer.received, pace))


class Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.parser = httptools.HttpRequestParser(self)
        self.path, self.body = "", b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.path, self.body = "", b""

    def on_url(self, url: bytes) -> None:
        self.path += url.decode()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        if self.path == "/v1/completions":
            self.engine.add(self.transport, self.body)
        elif self.path == "/v1/models":
            self._answer({"data": [{"id": MODEL, "root": MODEL}]})
        elif self.path == RECORD:
            self._answer(asdict(self.engine.record))
            self.engine.restart()
        else:
            self._answer({"error": "not found"}, b"404 Not Found")

    def _answer(self, content: object, status: bytes = b"200 OK") -> None:
        body = json.dumps(content).encode()
        head = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        self.transport.write(head % (status, len(body)) + body)


async def serve(pace: Pace, send: Send[Listening]) -> None:
    engine = Engine(pace)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(engine), "127.0.0.1", 0, backlog=4096)
    send(Listening(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
    await engine.run()


def work(pace: Pace, send: Send[Listening]) -> None:
    """Serves until the process that started it ends it."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(pace, send))


if __name__ == "__main__":
    run_program(PACED_SERVER, work, str(__doc__))
