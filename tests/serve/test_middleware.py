"""The door in front of vLLM's routes, with a small application behind it."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from serve.engine.state import ABORTING, DRAINING, READY, STATE
from serve.middleware import ServerMiddleware

KEY = "sesame"


class Behind:
    """An application that notes who got in."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.running = -1
        self.door: ServerMiddleware | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.paths.append(scope["path"])
        self.running = self.door.running if self.door else -1
        if scope["path"] == "/fails":
            raise RuntimeError("it broke")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


@pytest.fixture
def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServerMiddleware:
    monkeypatch.setenv(STATE, str(tmp_path))
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    behind = Behind()
    behind.door = ServerMiddleware(behind)
    return behind.door


def ask(
    door: ServerMiddleware,
    path: str,
    headers: dict[str, str] | None = None,
    method: str = "GET",
    kind: str = "http",
    app: object = None,
) -> tuple[Any, dict[str, Any]]:
    """The status (of a websocket the kind of answer), and what the body says."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {}

    pairs = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    scope = {"type": kind, "path": path, "method": method, "headers": pairs, "app": app}
    asyncio.run(door(scope, receive, send))
    body = sent[-1].get("body", b"{}")
    return sent[0].get("status", sent[0]["type"]), json.loads(body)


def streamed(door: ServerMiddleware, path: str) -> list[str]:
    """The events that a client sees."""
    bodies: list[bytes] = []

    async def send(message: Any) -> None:
        bodies.append(message.get("body", b""))

    async def receive() -> Any:
        return {}

    headers = [(name.encode(), value.encode()) for name, value in WITH_KEY.items()]
    scope = {"type": "http", "path": path, "method": "POST", "headers": headers}
    asyncio.run(door(scope, receive, send))
    events = b"".join(bodies).decode().split("\n\n")
    return [event.removeprefix("data: ") for event in events if event]


WITH_KEY = {"authorization": f"Bearer {KEY}"}


def test_every_route_but_two_asks_for_the_key(door: ServerMiddleware) -> None:
    for path in ("/v1/models", "/metrics", "/", "//v1/models", "/v1/models/", "/health/x"):
        assert ask(door, path)[0] == 401
        assert ask(door, path, {"authorization": "Bearer other"})[0] == 401
        assert ask(door, path, {"authorization": f"Basic {KEY}"})[0] == 401
        assert ask(door, path, WITH_KEY)[0] == 200
    assert ask(door, "/health")[0] == 200


def test_only_a_browsers_real_question_passes_without_one(door: ServerMiddleware) -> None:
    assert ask(door, "/metrics", method="OPTIONS")[0] == 401
    asked = {"origin": "http://here", "access-control-request-method": "POST"}
    assert ask(door, "/v1/completions", asked, "OPTIONS")[0] == 200


def test_a_websocket_without_a_key_is_closed(door: ServerMiddleware) -> None:
    for path in ("/v1/realtime", "/ready"):
        assert ask(door, path, kind="websocket")[0] in ("websocket.close", 200)
    assert ask(door, "/v1/realtime", kind="websocket")[0] == "websocket.close"


def test_ready_follows_the_program_that_watches(door: ServerMiddleware, tmp_path: Path) -> None:
    assert ask(door, "/ready")[0] == 503
    (tmp_path / READY).touch()
    status, content = ask(door, "/ready")
    assert (status, content["ready"], content["server"]) == (200, True, tmp_path.name)
    (tmp_path / DRAINING).touch()
    assert ask(door, "/ready")[0] == 503


def test_a_server_that_drains_takes_nothing_new(door: ServerMiddleware, tmp_path: Path) -> None:
    assert ask(door, "/v1/completions", WITH_KEY)[0] == 200
    assert door.app.running == 1  # type: ignore[attr-defined]
    (tmp_path / DRAINING).touch()
    assert ask(door, "/v1/completions", WITH_KEY)[0] == 503
    assert ask(door, "/metrics", WITH_KEY)[0] == 200


class Engine:
    """What vLLM's engine is asked to end, and whether it can."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.is_dead = False

    async def pause_generation(self, mode: str, clear_cache: bool) -> None:
        if self.is_dead:
            raise RuntimeError("the engine is dead")
        self.ended.append(mode)


def test_at_the_limit_the_engine_ends_what_is_left(door: ServerMiddleware, tmp_path: Path) -> None:
    engine = Engine()
    app = SimpleNamespace(state=SimpleNamespace(engine_client=engine))
    (tmp_path / DRAINING).touch()
    assert ask(door, "/ready", app=app)[0] == 503
    assert engine.ended == []
    (tmp_path / ABORTING).touch()
    assert ask(door, "/ready", app=app)[1]["draining"]
    assert ask(door, "/ready", app=app)[0] == 503
    assert engine.ended == ["abort", "abort"]
    engine.is_dead = True
    assert ask(door, "/ready", app=app)[0] == 503
    assert ask(door, "/ready")[0] == 503


@pytest.mark.parametrize(
    ("path", "events", "expected"),
    [
        ("/v1/completions", [], ["abort"]),
        ("/v1/chat/completions", [], ["abort"]),
        ("/v1/completions", [{"finish_reason": None}], [None, "abort"]),
        ("/v1/completions", [{"finish_reason": "length"}], ["length"]),
        ("/v1/completions", [{"finish_reason": "abort"}], ["abort"]),
    ],
)
def test_every_stream_that_is_aborted_has_one_finish_reason(
    path: str,
    events: list[dict[str, Any]],
    expected: list[Any],
    door: ServerMiddleware,
    tmp_path: Path,
) -> None:
    bodies = [json.dumps({"choices": [event]}, separators=(",", ":")) for event in events]

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        (tmp_path / ABORTING).touch()
        await door._ready(scope, lambda _: asyncio.sleep(0))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for body in [*bodies, "[DONE]"]:
            part = {"type": "http.response.body", "body": f"data: {body}\n\n".encode()}
            await send(part | {"more_body": True})
        await send({"type": "http.response.body", "body": b""})

    door.app = stream
    sent = streamed(door, path)
    assert sent[-1] == "[DONE]"
    choices = [json.loads(event)["choices"][0] for event in sent[:-1]]
    assert [choice["finish_reason"] for choice in choices] == expected


def test_a_stream_that_nobody_aborts_is_left_as_it_is(door: ServerMiddleware) -> None:
    async def stream(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    door.app = stream
    assert streamed(door, "/v1/completions") == ["[DONE]"]


def test_what_fails_is_no_longer_running(door: ServerMiddleware) -> None:
    with pytest.raises(RuntimeError):
        ask(door, "/fails", WITH_KEY)
    assert door.running == 0


def test_without_a_key_or_a_watcher_it_is_open_and_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STATE, raising=False)
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    door = ServerMiddleware(Behind())
    assert ask(door, "/v1/models")[0] == 200
    assert ask(door, "/ready")[0] == 200
