"""ASGI middleware between the network and vLLM's routes, inside the server's own process.

vLLM checks its key only under /v1, and aborts running requests when it is told to stop. Here every
route but /health and /ready requires the key, and /ready tells whether the canary has passed. A
server that drains refuses new requests while it finishes running ones. Requests that do not finish
in time are aborted, each with a finish reason.
"""

import asyncio
import hashlib
import json
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from serve.engine.state import ABORTING, DRAINING, READY, STATE, ReadyAnswer

KEY = "VLLM_API_KEY"
SECONDS_TO_ABORT = 4  # less than the watching program waits for an answer
OPEN = ("/health", "/ready")
NO_KEY = "the key is missing or wrong: Authorization: Bearer KEY"
FINISHED, DONE = b'"finish_reason":"', b"data: [DONE]"
EMPTY_ENDS: dict[str, tuple[str, Mapping[str, object]]] = {
    "/v1/completions": ("text_completion", {"text": ""}),
    "/v1/chat/completions": ("chat.completion.chunk", {"delta": {}}),
}
UNCOUNTED = (*OPEN, "/metrics", "/v1/models", "/version", "/ping", "/load")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class ServerMiddleware:
    """vLLM installs it as the outermost middleware."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.state = Path(os.environ[STATE]) if STATE in os.environ else None
        key = os.environ.get(KEY, "")
        self.key = _digest(key) if key else None
        self.running = 0
        self.is_aborting = False
        self.aborted = 0
        """Requests that were running when aborting began."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self.app(scope, receive, send)
        path = scope["path"]
        if path == "/ready" and scope["type"] == "http":
            return await self._ready(scope, send)
        if path not in OPEN and not _is_preflight(scope) and not self._has_key(scope):
            return await _refuse(scope, send, 401, NO_KEY)
        if path in UNCOUNTED:
            return await self.app(scope, receive, send)
        if self._has_state(DRAINING):
            return await _refuse(scope, send, 503, "the server is stopping")
        self.running += 1
        if path in EMPTY_ENDS:
            send = self._with_finish_reason(scope, send)
        try:
            return await self.app(scope, receive, send)
        finally:
            self.running -= 1

    def _with_finish_reason(self, scope: Scope, send: Send) -> Send:
        """Adds a finish reason to a stream aborted before its first token: vLLM sends none."""
        finished = False

        async def sending(message: MutableMapping[str, Any]) -> None:
            nonlocal finished
            body = message.get("body", b"")
            finished = finished or FINISHED in body
            if self.is_aborting and not finished and body.startswith(DONE):
                message = {**message, "body": _empty_end(scope) + body}
            await send(message)

        return sending

    def _has_key(self, scope: Scope) -> bool:
        if self.key is None:
            return True
        headers = dict(scope["headers"])
        scheme, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        return scheme.lower() == "bearer" and secrets.compare_digest(_digest(token), self.key)

    def _has_state(self, state: str) -> bool:
        """Whether the watching program has set this state; without one, the server is ready."""
        if self.state is None:
            return state == READY
        return (self.state / state).exists()

    async def _ready(self, scope: Scope, send: Send) -> None:
        if self._has_state(ABORTING):
            if not self.is_aborting:
                self.is_aborting, self.aborted = True, self.running
            await _abort_all(scope)
        draining = self._has_state(DRAINING)
        is_ready = self._has_state(READY) and not draining
        answer = ReadyAnswer(
            ready=is_ready,
            draining=draining,
            running=self.running,
            aborted=self.aborted,
            server=self.state.name if self.state else "",
        )
        await _answer(send, 200 if is_ready else 503, asdict(answer))


def _empty_end(scope: Scope) -> bytes:
    """The only event of an answer that was aborted before its first token."""
    kind, choice = EMPTY_ENDS[scope["path"]]
    arguments = getattr(getattr(scope.get("app"), "state", None), "args", None)
    names = getattr(arguments, "served_model_name", None) or [""]
    content = {
        "id": f"aborted-{secrets.token_hex(8)}",
        "object": kind,
        "created": int(time.time()),
        "model": names[0],
        "choices": [{"index": 0, **choice, "logprobs": None, "finish_reason": "abort"}],
    }
    return b"data: " + json.dumps(content).encode() + b"\n\n"


async def _abort_all(scope: Scope) -> None:
    """Makes the engine end every request with finish_reason abort, waiting ones included, and
    accept no more. Called again, it ends those that have arrived since."""
    engine = getattr(getattr(scope.get("app"), "state", None), "engine_client", None)
    if engine is None:
        return
    # A dead or hanging engine ends no request; the server is stopped anyway.
    with suppress(Exception):
        await asyncio.wait_for(
            engine.pause_generation(mode="abort", clear_cache=False), SECONDS_TO_ABORT
        )


def _is_preflight(scope: Scope) -> bool:
    """Whether it is a browser's CORS preflight, which is answered before any route."""
    names = {name for name, _ in scope["headers"]}
    has_cors_headers = {b"origin", b"access-control-request-method"} <= names
    return bool(scope.get("method") == "OPTIONS" and has_cors_headers)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


async def _refuse(scope: Scope, send: Send, status: int, message: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    await _answer(send, status, {"error": {"message": message, "code": status}})


async def _answer(send: Send, status: int, content: Mapping[str, object]) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(content).encode()})
