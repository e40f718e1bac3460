"""One vLLM server as a child process: its start as it goes, its end with nothing left behind."""

import ctypes
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from conf.cache import cache_root
from conf.errors import QuantlineError, world_fault
from conf.process.endings import ending, oom_kills
from serve.engine.client import no_proxy
from serve.engine.endings import ENGINE_DIED, engine_ending
from serve.engine.state import ABORTING, DRAINING, READY, STATE

SECONDS_TO_START = 1800
SECONDS_TO_STOP = 30
SECONDS_TO_ABORT = 15
SECONDS_TO_FLUSH = 2
SECONDS_TO_DIE = 10
POLL_S = 0.2
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
LIBRARY = ctypes.CDLL(None)  # loaded here: a process that was just forked must not
TAIL = 64 * 1024
# What vLLM writes when it gets there; the last that was seen is where it is.
PHASES = (
    ("reading weights", r"Starting to load model|Loading safetensors|Loading weights"),
    ("compiling", r"Dynamo bytecode|Compiling a graph|torch\.compile took"),
    ("making room for the cache", r"KV cache size|Available KV cache memory"),
    ("capturing graphs", r"Capturing CUDA graph"),
    ("opening the port", r"Started server process|Waiting for application startup"),
)
OUT_OF_MEMORY = re.compile(
    r"OutOfMemoryError|out of memory|No available memory for the cache|larger than the (?:maximum|"
    r"available)[^\n]*KV cache|KV cache is needed|Free memory on device|Cannot allocate memory"
)
NO_PROXY = no_proxy()
LOWER = "lower engine.max_model_len, engine.max_num_seqs or engine.gpu_memory_utilization"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def check_port(host: str, port: int) -> None:
    """Raises where another program listens already, before minutes are spent on loading."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise world_fault(
                f"port={port}: cannot be taken on {host} ({error.strerror})"
            ) from error


@dataclass
class Stopped:
    """What became of the requests that were running."""

    aborted: int = 0
    """Ended before they were done, with finish_reason abort."""
    cut: int = 0
    """Left without an end."""


class ServerProcess:
    """vLLM's server and everything that it starts."""

    def __init__(
        self,
        command: list[str],
        variables: dict[str, str],
        url: str,
        log: Path,
        own_session: bool = False,
    ) -> None:
        """In a session of its own a Ctrl-C in the terminal does not reach it: whoever starts it so
        lets it finish what it is doing. Without, it ends with the group of its starter."""
        self.command, self.url, self.log, self.own_session = command, url, log, own_session
        self.state = _state_folder()
        self.variables = variables | {STATE: str(self.state)}
        self.begin = time.monotonic()
        self.kills_before = oom_kills()
        self.place = log.stat().st_size if log.is_file() else 0
        with log.open("ab") as chatter:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=chatter,
                stderr=chatter,
                env=self.variables,
                start_new_session=own_session,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )

    def wait_until_healthy(
        self,
        seen: Callable[[str], None] = lambda _: None,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Waits for the first answer and says each phase as it begins; an end that comes first is
        an error with its reason."""
        phase = ""
        while time.monotonic() < self.begin + SECONDS_TO_START and is_wanted():
            if self.process.poll() is not None:
                raise self.death()
            if self._is_ours():
                return
            now = self.phase()
            if now != phase:
                phase = now
                seen(phase)
            time.sleep(POLL_S)
        if is_wanted():
            raise world_fault(
                f"the server was not ready after {SECONDS_TO_START} s (see {self.log})"
            )

    def phase(self) -> str:
        """How far its start is, by its log."""
        text = self.text()
        reached = [name for name, pattern in PHASES if re.search(pattern, text)]
        return reached[-1] if reached else "starting vLLM"

    def text(self) -> str:
        """What it wrote to its log, the last of it."""
        with self.log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self.place, size - TAIL))
            return file.read().decode(errors="replace")

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def say_ready(self) -> None:
        (self.state / READY).touch()

    def death(self) -> QuantlineError:
        """Why it is gone, in one line."""
        code, text = self.process.wait(), self.text()
        where = f"(see {self.log})"
        if code >= 0 and OUT_OF_MEMORY.search(text):
            return world_fault(f"the engine ran out of memory: {LOWER} {where}")
        if code >= 0 and ENGINE_DIED.search(text):
            return world_fault(f"{engine_ending(text, self.kills_before)} {where}")
        return world_fault(f"the server {ending(code, text, self.kills_before)} {where}")

    def late_death(self) -> QuantlineError | None:
        """Why it is gone, after giving one that no longer answers the time to end; none where it
        is well."""
        deadline = time.monotonic() + SECONDS_TO_DIE
        while self.is_alive() and time.monotonic() < deadline and not self._is_healthy():
            time.sleep(POLL_S)
        return None if self.is_alive() else self.death()

    def stop(
        self, drain_s: float | None = None, is_impatient: Callable[[], bool] = lambda: False
    ) -> Stopped:
        """Ends it and everything that it started. Given seconds, requests may finish for so long;
        those that are left are then ended with a finish reason."""
        stopped = Stopped()
        if self.is_alive() and drain_s is not None:
            left = self._drain(drain_s, is_impatient)
            stopped = self._abort(left) if left else stopped
        family = self._family()
        if self.is_alive():
            self.process.send_signal(signal.SIGTERM)
            begin = time.monotonic()
            while self.is_alive() and time.monotonic() < begin + (
                SECONDS_TO_FLUSH if is_impatient() else SECONDS_TO_STOP
            ):
                time.sleep(POLL_S)
        for member in {*family, *self._family()}:
            with suppress(psutil.NoSuchProcess):
                member.kill()
        self.process.kill()
        self.process.wait()
        psutil.wait_procs(family, timeout=SECONDS_TO_STOP)
        shutil.rmtree(self.state, ignore_errors=True)
        return stopped

    def _family(self) -> list[psutil.Process]:
        """Everything that it started; in a session of its own also what outlived it."""
        if self.own_session:
            return [p for p in psutil.process_iter() if _session_of(p.pid) == self.process.pid]
        found: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            found = psutil.Process(self.process.pid).children(recursive=True)
        return found

    def _drain(self, seconds: float, is_impatient: Callable[[], bool]) -> int:
        self.state.mkdir(parents=True, exist_ok=True)
        (self.state / DRAINING).touch()
        deadline = time.monotonic() + seconds
        running = self._running(1)
        while running and time.monotonic() < deadline and self.is_alive() and not is_impatient():
            time.sleep(POLL_S)
            running = self._running(running)
        return running

    def _abort(self, left: int) -> Stopped:
        """Ends the requests that are left, each with its own finish reason: told to stop, vLLM
        kills its engine and leaves their connections open. The server counts them as it ends them:
        some may have finished since they were last counted here."""
        (self.state / ABORTING).touch()
        deadline = time.monotonic() + SECONDS_TO_ABORT
        ended = running = left
        while True:
            answer = self._ready() or {}  # each question has the server end what is left
            running = int(answer.get("running", running))
            ended = int(answer.get("aborted", ended))
            if not running or time.monotonic() >= deadline or not self.is_alive():
                return Stopped(aborted=max(0, ended - running), cut=running)
            time.sleep(POLL_S)

    def _running(self, before: int) -> int:
        """Requests that are running; as many as before where it does not say."""
        answer = self._ready()
        return before if answer is None else int(answer.get("running", before))

    def _is_ours(self) -> bool:
        """Whether it answers, and not another program that had the port first."""
        answer = self._ready()
        return answer is not None and answer.get("server") == self.state.name and self._is_healthy()

    def _is_healthy(self) -> bool:
        try:
            with NO_PROXY.open(f"{self.url}/health", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def _ready(self) -> dict[str, Any] | None:
        """What it says of itself, whether it is ready or not; none where it does not answer."""
        try:
            try:
                with NO_PROXY.open(f"{self.url}/ready", timeout=5) as answer:
                    content = json.load(answer)
            except urllib.error.HTTPError as error:
                content = json.load(error)
        except ConnectionRefusedError:
            return {"running": 0}
        except urllib.error.URLError as error:
            return {"running": 0} if isinstance(error.reason, ConnectionRefusedError) else None
        except (OSError, ValueError, http.client.HTTPException):
            return None
        return content if isinstance(content, dict) else None


def _state_folder() -> Path:
    """A folder for the server's state; those of programs that are gone are removed."""
    root = cache_root() / "servers"
    root.mkdir(parents=True, exist_ok=True)
    for old in root.iterdir():
        owner = old.name.split("-")[0]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=root))


def _session_of(process: int) -> int:
    try:
        return os.getsid(process)
    except OSError:
        return -1


def _die_with_parent() -> None:
    """The kernel ends the server should this process be killed."""
    LIBRARY.prctl(DIE_WITH_PARENT, signal.SIGTERM)
