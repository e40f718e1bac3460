"""Streaming HTTP connections that hand over each block of an answer at once, without waking a task.

With hundreds of clients, a general HTTP library delays tokens by more than an engine's step.
"""

import asyncio
import ssl
import time
from collections.abc import Callable
from typing import NamedTuple, cast
from urllib.parse import urlsplit

import httptools

OnBlock = Callable[[bytes], None]
LONGEST_IDLE_S = 3.0  # servers close idle connections after five seconds
SECONDS_TO_CONNECT = 30.0


class Answer(NamedTuple):
    """How an answer ended."""

    status: int
    error_text: bytes
    """The body of an answer that is not 200."""


class Connection(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.idle_since = 0.0
        self.is_open = False
        self.ended: asyncio.Future[Answer] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's.
        self.transport, self.is_open = cast(asyncio.Transport, transport), True

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self._fail(error or ConnectionError("the server closed the connection"))

    async def post(self, head: bytes, body: bytes, on_block: OnBlock) -> Answer:
        """Sends the request and passes on each block of the answer as it arrives."""
        assert self.transport is not None
        self.parser = httptools.HttpResponseParser(self)
        self.on_block, self.error_text = on_block, b""
        self.ended = asyncio.get_running_loop().create_future()
        self.transport.write(b"%sContent-Length: %d\r\n\r\n%s" % (head, len(body), body))
        return await self.ended

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, AttributeError) as error:
            self._fail(ConnectionError(f"the answer is not HTTP ({error})"))
            self.close()

    def on_headers_complete(self) -> None:
        self.is_ok = self.parser.get_status_code() == 200

    def on_body(self, block: bytes) -> None:
        if self.is_ok:
            self.on_block(block)
        else:
            self.error_text += block

    def on_message_complete(self) -> None:
        if self.ended is not None and not self.ended.done():
            self.ended.set_result(Answer(self.parser.get_status_code(), self.error_text))
        if not self.parser.should_keep_alive():
            self.close()

    def close(self) -> None:
        self.is_open = False
        if self.transport is not None:
            self.transport.close()

    def _fail(self, error: Exception) -> None:
        if self.ended is not None and not self.ended.done():
            self.ended.set_exception(error)


class Connections:
    """Connections to one server, used again while they are fresh."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        address = urlsplit(url)
        self.host, self.ssl = address.hostname or "", None
        self.port = address.port or (443 if address.scheme == "https" else 80)
        if address.scheme == "https":
            self.ssl = ssl.create_default_context()
        self.idle: list[Connection] = []
        lines = {"Host": address.netloc, "Content-Type": "application/json", **headers}
        fields = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self.head = f"POST {address.path}/v1/completions HTTP/1.1\r\n{fields}".encode()

    async def post(self, body: bytes, on_block: OnBlock) -> Answer:
        connection = await self._connection()
        try:
            return await connection.post(self.head, body, on_block)
        except BaseException:
            connection.close()
            raise
        finally:
            if connection.is_open:
                connection.idle_since = time.monotonic()
                self.idle.append(connection)

    async def _connection(self) -> Connection:
        while self.idle:
            connection = self.idle.pop()
            if connection.is_open and time.monotonic() - connection.idle_since < LONGEST_IDLE_S:
                return connection
            connection.close()
        return await self._connect()

    async def open(self, count: int) -> None:
        """Opens connections before they are needed. Where that fails, the requests will say so."""
        opening = [self._connect() for _ in range(count)]
        opened = await asyncio.gather(*opening, return_exceptions=True)
        for connection in opened:
            if isinstance(connection, Connection):
                connection.idle_since = time.monotonic()
                self.idle.append(connection)

    async def _connect(self) -> Connection:
        connecting = asyncio.get_running_loop().create_connection(
            Connection, self.host, self.port, ssl=self.ssl
        )
        _, connection = await asyncio.wait_for(connecting, SECONDS_TO_CONNECT)
        return connection

    def close(self) -> None:
        for connection in self.idle:
            connection.close()
