"""A vLLM server as a child process: its phases of starting, and its end without leftovers."""

import ctypes
import http.client
import json
import os
import random
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

import psutil

from conf.cache import cache_root
from conf.durations import duration
from conf.errors import QuantlineError, environment_failure
from conf.process.endings import ending, oom_kills
from serve.engine.client import no_proxy
from serve.engine.endings import ENGINE_DIED, engine_ending
from serve.engine.state import ABORTING, DRAINING, READY, STATE, ReadyAnswer

SECONDS_TO_START = 1800
SECONDS_TO_STOP = 30
SECONDS_TO_ABORT = 15
SECONDS_TO_FLUSH = 2
SECONDS_TO_DIE = 10
POLL_S = 0.2
OWN_PORTS = range(20_000, 30_000)  # Linux gives out those from 32,768 on
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
LIBRARY = ctypes.CDLL(None)  # loaded here: a forked process must not load it
TAIL = 64 * 1024
# What vLLM logs in each phase; the last one in the log is the current phase.
PHASES = (
    ("reading weights", r"Starting to load model|Loading safetensors|Loading weights"),
    ("compiling", r"Dynamo bytecode|Compiling a graph|torch\.compile took"),
    ("allocating the KV cache", r"KV cache size|Available KV cache memory"),
    ("capturing graphs", r"Capturing CUDA graph"),
    ("opening the port", r"Started server process|Waiting for application startup"),
)
OUT_OF_MEMORY = re.compile(
    r"OutOfMemoryError|out of memory|No available memory for the cache|larger than the (?:maximum|"
    r"available)[^\n]*KV cache|KV cache is needed|Free memory on device|Cannot allocate memory"
)
NO_PROXY = no_proxy()
MEMORY_ADVICE = "lower engine.max_model_len, engine.max_num_seqs or engine.gpu_memory_utilization"


def free_port() -> int:
    """A port that nobody uses. A server binds it only after it has loaded: the system must not give
    it to another program until then, so it is none of those that the system gives out itself."""
    for port in random.SystemRandom().sample(OWN_PORTS, len(OWN_PORTS)):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise environment_failure("there is no free port")


def check_port(host: str, port: int) -> None:
    """Raises where another program uses the port, before minutes are spent on loading."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise environment_failure(
                f"port={port}: cannot be used on {host} ({error.strerror})"
            ) from error


@dataclass
class Stopped:
    """How the requests ended that were running at the stop."""

    aborted: int = 0
    """Ended early, with finish_reason abort."""
    cut: int = 0
    """Ended without a finish reason."""


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
        """With its own session, a Ctrl-C in the terminal does not reach it: the caller stops it and
        can let requests finish. Without, it ends with the process group of the caller."""
        self.command, self.url, self.log, self.own_session = command, url, log, own_session
        self.state = _state_folder()
        self.variables = variables | {STATE: str(self.state)}
        self.begin = time.monotonic()
        self.kills_before = oom_kills()
        self.log_start = log.stat().st_size if log.is_file() else 0
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self.variables,
                start_new_session=own_session,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )

    def wait_until_healthy(
        self,
        on_phase: Callable[[str], None] = lambda _: None,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Waits for the first answer and reports each phase as it begins. Raises the reason where
        the server ends first."""
        phase = ""
        while time.monotonic() < self.begin + SECONDS_TO_START and is_wanted():
            if self.process.poll() is not None:
                raise self.death()
            if self._is_this_server():
                return
            current = self.phase()
            if current != phase:
                phase = current
                on_phase(phase)
            time.sleep(POLL_S)
        if is_wanted():
            raise environment_failure(
                f"the server was not ready after {duration(SECONDS_TO_START)} (see {self.log})"
            )

    def phase(self) -> str:
        """The current phase of its start, from its log."""
        text = self.log_tail()
        reached = [name for name, pattern in PHASES if re.search(pattern, text)]
        return reached[-1] if reached else "starting vLLM"

    def log_tail(self) -> str:
        """The end of what this process wrote to its log."""
        with self.log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self.log_start, size - TAIL))
            return file.read().decode(errors="replace")

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def mark_ready(self) -> None:
        """Makes /ready answer that the server is ready."""
        (self.state / READY).touch()

    def death(self) -> QuantlineError:
        """Why it ended, in one line."""
        code, text = self.process.wait(), self.log_tail()
        where = f"(see {self.log})"
        if code >= 0 and OUT_OF_MEMORY.search(text):
            return environment_failure(f"the engine ran out of memory: {MEMORY_ADVICE} {where}")
        if code >= 0 and ENGINE_DIED.search(text):
            return environment_failure(f"{engine_ending(text, self.kills_before)} {where}")
        return environment_failure(f"the server {ending(code, text, self.kills_before)} {where}")

    def late_death(self) -> QuantlineError | None:
        """Why it ended; None where it is healthy. A server that no longer answers gets some time
        to end first."""
        deadline = time.monotonic() + SECONDS_TO_DIE
        while self.is_alive() and time.monotonic() < deadline and not self._is_healthy():
            time.sleep(POLL_S)
        return None if self.is_alive() else self.death()

    def stop(
        self, drain_s: float | None = None, is_impatient: Callable[[], bool] = lambda: False
    ) -> Stopped:
        """Ends it and every process that it started. With `drain_s`, running requests have so many
        seconds to finish; the rest is aborted with a finish reason."""
        stopped = Stopped()
        if self.is_alive() and drain_s is not None:
            unfinished = self._drain(drain_s, is_impatient)
            stopped = self._abort(unfinished) if unfinished else stopped
        processes = self._processes()
        if self.is_alive():
            self.process.send_signal(signal.SIGTERM)
            stop_begin = time.monotonic()
            while self.is_alive() and time.monotonic() < stop_begin + (
                SECONDS_TO_FLUSH if is_impatient() else SECONDS_TO_STOP
            ):
                time.sleep(POLL_S)
        for process in {*processes, *self._processes()}:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.kill()
        self.process.wait()
        psutil.wait_procs(processes, timeout=SECONDS_TO_STOP)
        shutil.rmtree(self.state, ignore_errors=True)
        return stopped

    def _processes(self) -> list[psutil.Process]:
        """Every process that it started; with its own session also those that outlived it."""
        if self.own_session:
            return [p for p in psutil.process_iter() if _session_of(p.pid) == self.process.pid]
        children: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(self.process.pid).children(recursive=True)
        return children

    def _drain(self, seconds: float, is_impatient: Callable[[], bool]) -> int:
        self.state.mkdir(parents=True, exist_ok=True)
        (self.state / DRAINING).touch()
        deadline = time.monotonic() + seconds
        running = self._running(1)
        while running and time.monotonic() < deadline and self.is_alive() and not is_impatient():
            time.sleep(POLL_S)
            running = self._running(running)
        return running

    def _abort(self, unfinished: int) -> Stopped:
        """Aborts the unfinished requests, each with a finish reason: on SIGTERM vLLM kills its
        engine and leaves their connections open. The server counts the aborted ones: some may have
        finished since they were last counted here."""
        (self.state / ABORTING).touch()
        deadline = time.monotonic() + SECONDS_TO_ABORT
        aborted = running = unfinished
        while True:
            answer = self._ready() or ReadyAnswer()  # each request makes the server abort the rest
            running = running if answer.running is None else answer.running
            aborted = aborted if answer.aborted is None else answer.aborted
            if not running or time.monotonic() >= deadline or not self.is_alive():
                return Stopped(aborted=max(0, aborted - running), cut=running)
            time.sleep(POLL_S)

    def _running(self, before: int) -> int:
        """Requests that are running; `before` where the server does not answer."""
        answer = self._ready()
        return before if answer is None or answer.running is None else answer.running

    def _is_this_server(self) -> bool:
        """Whether this server answers, not another program on the same port."""
        answer = self._ready()
        return answer is not None and answer.server == self.state.name and self._is_healthy()

    def _is_healthy(self) -> bool:
        try:
            with NO_PROXY.open(f"{self.url}/health", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def _ready(self) -> ReadyAnswer | None:
        """Its answer on /ready, whether it is ready or not; None where it does not answer."""
        try:
            try:
                with NO_PROXY.open(f"{self.url}/ready", timeout=5) as answer:
                    content = json.load(answer)
            except urllib.error.HTTPError as error:
                content = json.load(error)
        except ConnectionRefusedError:
            return ReadyAnswer(running=0)
        except urllib.error.URLError as error:
            is_refused = isinstance(error.reason, ConnectionRefusedError)
            return ReadyAnswer(running=0) if is_refused else None
        except (OSError, ValueError, http.client.HTTPException):
            return None
        return ReadyAnswer.of(content) if isinstance(content, dict) else None


def _state_folder() -> Path:
    """A new folder for the server's state. Folders of processes that have ended are removed."""
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
    """Makes the kernel end the server if this process is killed."""
    LIBRARY.prctl(DIE_WITH_PARENT, signal.SIGTERM)
