"""Requests to a server on this machine or another, with its key."""

import json
import os
import urllib.request
from collections.abc import Mapping
from typing import Any

from conf.errors import environment_failure

API_KEY = "VLLM_API_KEY"


def no_proxy() -> urllib.request.OpenerDirector:
    """An opener without a proxy: a proxy cannot reach a server on this machine, and must not see
    its key."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))


def key_headers() -> dict[str, str]:
    """The headers for a server that requires a key."""
    key = os.environ.get(API_KEY)
    return {"Authorization": f"Bearer {key}"} if key else {}


def post(url: str, path: str, body: Mapping[str, object], seconds: float = 600) -> dict[str, Any]:
    """A JSON request to a server, with the key, and its answer."""
    headers = {"Content-Type": "application/json", **key_headers()}
    request = urllib.request.Request(f"{url}{path}", json.dumps(body).encode(), headers)
    with no_proxy().open(request, timeout=seconds) as answer:
        content: dict[str, Any] = json.load(answer)
    return content


def served_name(url: str) -> str:
    """The model name of a running server."""
    request = urllib.request.Request(f"{url.rstrip('/')}/v1/models", headers=key_headers())
    try:
        with no_proxy().open(request, timeout=30) as answer:
            return str(json.load(answer)["data"][0]["id"])
    except (OSError, LookupError, ValueError) as error:
        # A ValueError may be about the key, and would show it.
        reason = error if isinstance(error, OSError) else type(error).__name__
        raise environment_failure(
            f"engine.url={url}: no server answers there ({reason})"
        ) from error
