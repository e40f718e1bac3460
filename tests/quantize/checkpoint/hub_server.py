"""A stand-in for the model hub: as much of its HTTP API as an upload needs."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_stand_in"


@dataclass
class Repository:
    visibility: str
    files: dict[str, bytes] = field(default_factory=lambda: {".gitattributes": b""})
    commits: list[str] = field(default_factory=list)


@dataclass
class Hub:
    """What the server holds, and what it shall refuse."""

    url: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    """Large files by their hash."""
    faults: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Status and message of answers, by a part of the path."""
    tokens: set[str] = field(default_factory=set)
    """Those that requests came with."""

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        for part, (status, message) in self.faults.items():
            if part in path:
                return status, {"error": message}
        path = path.split("?")[0].strip("/")
        if path == "api/whoami-v2":
            return 200, {"name": "team", "type": "user", "orgs": []}
        if path == "api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if path == "api/repos/create":
            return self._create(json.loads(body))
        if method == "PUT":
            self.objects[path.split("/")[-1]] = body
            return 200, {}
        if path.endswith(".git/info/lfs/objects/batch"):
            return 200, {"transfer": "basic", "objects": self._batch(json.loads(body))}
        return self._of_repository(path.removeprefix("api/models/"), body)

    def _create(self, request: dict[str, Any]) -> tuple[int, Any]:
        name = f"{request['organization']}/{request['name']}"
        if name in self.repositories:
            return 409, {
                "error": "You already created this model repo",
                "url": f"{self.url}/{name}",
            }
        self.repositories[name] = Repository(request["visibility"])
        return 200, {"url": f"{self.url}/{name}", "name": name}

    def _batch(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            {
                "oid": entry["oid"],
                "size": entry["size"],
                "actions": {"upload": {"href": f"{self.url}/lfs/{entry['oid']}"}},
            }
            for entry in request["objects"]
        ]

    def _of_repository(self, path: str, body: bytes) -> tuple[int, Any]:
        organization, name, *rest = path.split("/")
        repository = self.repositories.get(f"{organization}/{name}")
        if repository is None:
            return 404, {"error": "Repository not found"}
        action = rest[0]
        if action == "tree":
            return 200, [
                {"type": "file", "path": path, "size": len(content), "oid": "0" * 40}
                for path, content in repository.files.items()
            ]
        if action == "preupload":
            files = json.loads(body)["files"]
            return 200, {"files": [self._upload_mode(entry["path"]) for entry in files]}
        assert action == "commit", path
        for line in body.splitlines():
            self._commit(repository, json.loads(line))
        commit = "1" * 40
        url = f"{self.url}/{organization}/{name}/commit/{commit}"
        return 200, {"commitOid": commit, "commitUrl": url}

    def _upload_mode(self, path: str) -> dict[str, Any]:
        mode = "lfs" if path.endswith(".safetensors") else "regular"
        return {"path": path, "uploadMode": mode, "shouldIgnore": False}

    def _commit(self, repository: Repository, line: dict[str, Any]) -> None:
        value = line["value"]
        if line["key"] == "header":
            repository.commits.append(value["summary"])
        elif line["key"] == "file":
            repository.files[value["path"]] = base64.b64decode(value["content"])
        elif line["key"] == "lfsFile":
            repository.files[value["path"]] = self.objects[value["oid"]]
        else:
            assert line["key"] == "deletedFile", line
            del repository.files[value["path"]]


@contextmanager
def running_hub() -> Iterator[Hub]:
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def _handle(self) -> None:
            hub.tokens.add(self.headers.get("Authorization", ""))
            if self.headers.get("Transfer-Encoding") == "chunked":
                body = b"".join(iter(self._chunk, b""))
            else:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, content = hub.answer(self.command, self.path, body)
            answer = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST = do_PUT = _handle  # noqa: N815

        def _chunk(self) -> bytes:
            content = self.rfile.read(int(self.rfile.readline(), 16))
            self.rfile.readline()
            return content

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
