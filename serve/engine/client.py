"""Talking to a server on this machine or another: addresses, keys, requests, and its last words."""

import json
import os
import re
import urllib.request
from typing import Any

from conf.errors import last_line, world_fault

API_KEY = "VLLM_API_KEY"
ERROR = re.compile(r"\w*(?:Error|Exception)\b: |\berror: ")
HARMLESS = re.compile(r"\b(?:DEBUG|INFO|WARNING) \d\d-\d\d ")  # as vLLM marks its lines
SAYS_NOTHING = ("See root cause above", "EngineDeadError", 'HTTP/1.1"')


def no_proxy() -> urllib.request.OpenerDirector:
    """A proxy for the world outside knows nothing of a server on this machine, and need not see
    its key."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))


def key_headers() -> dict[str, str]:
    """What a client sends to a server that asks for a key."""
    key = os.environ.get(API_KEY)
    return {"Authorization": f"Bearer {key}"} if key else {}


def post(url: str, path: str, body: dict[str, Any], seconds: float = 600) -> dict[str, Any]:
    """A JSON request to a server, with the key, and its answer."""
    headers = {"Content-Type": "application/json", **key_headers()}
    request = urllib.request.Request(f"{url}{path}", json.dumps(body).encode(), headers)
    with no_proxy().open(request, timeout=seconds) as answer:
        content: dict[str, Any] = json.load(answer)
    return content


def served_name(url: str) -> str:
    """What a running server calls its model."""
    request = urllib.request.Request(f"{url.rstrip('/')}/v1/models", headers=key_headers())
    try:
        with no_proxy().open(request, timeout=30) as answer:
            return str(json.load(answer)["data"][0]["id"])
    except (OSError, LookupError, ValueError) as error:
        # A ValueError may be about the key, and would show it.
        words = error if isinstance(error, OSError) else type(error).__name__
        raise world_fault(f"engine.url={url}: no server answers there ({words})") from error


def reason_in(log: str) -> str:
    """The last line of a log that names an error of its own, or else the last one."""
    lines = [line for line in log.splitlines() if not HARMLESS.search(line)]
    named = [line for line in lines if ERROR.search(line)]
    telling = [line for line in named if not any(words in line for words in SAYS_NOTHING)]
    return (telling or named or [last_line(log)])[-1].strip().removeprefix("error: ")
