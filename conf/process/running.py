"""Starts processes of ours: leaves no process behind, raises their failures as errors."""

import os
import select
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Generic

from conf.cache import log_file
from conf.durations import duration
from conf.errors import QuantlineError, environment_failure
from conf.process.endings import ending, oom_kills
from conf.process.messages import Failure, decode, encode
from conf.process.program import Event, Program, Request

GUARD = Path(__file__).with_name("guard.py")
NO_LOG = "it wrote no log"
BLOCK = 1 << 16  # bytes read at once


@dataclass(frozen=True)
class Start:
    """What a process is started with."""

    command: list[str]
    life_line: int
    """A pipe whose other end only we hold: the process is killed when it closes."""
    pipe: int
    """The pipe for its events, whose number is the command's last argument."""
    output: IO[bytes]
    environment: Mapping[str, str] | None
    folder: str | None


def spawn(start: Start) -> subprocess.Popen[bytes]:
    """Starts a command in a session of its own, with a guard that kills it where we end."""
    guard = [sys.executable, "-I", "-S", str(GUARD), str(start.life_line)]
    return subprocess.Popen(
        [*guard, *start.command],
        stdin=subprocess.PIPE,
        stdout=start.output,
        stderr=start.output,
        pass_fds=[start.pipe, start.life_line],
        env=start.environment,
        cwd=start.folder,
        start_new_session=True,
    )


class Running(Generic[Event]):
    """A started process. It reads requests from standard input and sends events through a pipe.
    Its output goes to a log, or to our standard error without one."""

    def __init__(
        self,
        command: list[str],
        events: tuple[type[Event], ...],
        called: str,
        log: Path | None,
        environment: Mapping[str, str] | None = None,
        folder: str | None = None,
    ) -> None:
        """The command gets the number of the pipe as its last argument. Output is appended to the
        log: two processes may share one."""
        self.message_types, self.called, self.log = (*events, Failure), called, log
        self.kills_before = oom_kills()
        read_end, write_end = os.pipe()
        life_line_end, self.life_line = os.pipe()
        try:
            with log.open("ab") if log else os.fdopen(os.dup(2), "wb") as output:
                command = [*command, str(write_end)]
                start = Start(command, life_line_end, write_end, output, environment, folder)
                self.process = spawn(start)
        finally:
            os.close(write_end)
            os.close(life_line_end)
        assert self.process.stdin is not None
        self.input = self.process.stdin
        self.pipe = os.fdopen(read_end, "rb", buffering=0)
        self.rest, self.lines = bytearray(), deque[bytes]()
        self.limit_s: float | None = None
        """Seconds without an event after which it counts as hanging; None for no limit."""
        self.buffered: deque[Event] = deque()
        self.failure: Failure | None = None
        self.is_closed = False

    def send(self, request: Any) -> None:
        """Sends a request. A process that has died already has the reason in its log."""
        with suppress(BrokenPipeError):
            self.input.write(encode(request))
            self.input.flush()

    def begin(self) -> None:
        """Closes its standard input: there are no more requests, and it may start its work."""
        with suppress(BrokenPipeError):
            self.input.close()

    def wait_until(self, kind: type[Any]) -> None:
        """Waits for an event of this type, or for the end, and buffers the events that arrive."""
        for event in self._arriving():
            self.buffered.append(event)
            if isinstance(event, kind):
                return

    def events(self) -> Iterator[Event]:
        """Its events as they arrive; raises where it failed or crashed."""
        while self.buffered:
            yield self.buffered.popleft()
        yield from self._arriving()
        if self.failure is not None:
            raise self.failure.error
        if self.process.wait():
            raise self.crash()

    def _arriving(self) -> Iterator[Event]:
        for line in self._lines():
            message = decode(line, self.message_types)
            if isinstance(message, Failure):
                self.failure = message
            else:
                yield message

    def _lines(self) -> Iterator[bytes]:
        while True:
            while self.lines:
                yield self.lines.popleft()
            if not self._has_more():
                return
            block = self.pipe.read(BLOCK)
            if not block:
                return
            self.rest += block
            if b"\n" in block:
                *lines, rest = self.rest.split(b"\n")
                self.lines.extend(map(bytes, lines))
                self.rest = rest

    def _has_more(self) -> bool:
        """Waits for more events, or the end. Kills a process that is silent for too long."""
        arriving = select.poll()
        arriving.register(self.pipe, select.POLLIN)
        if arriving.poll(None if self.limit_s is None else self.limit_s * 1e3):
            return True
        reason = f"{self.called} hung: it reported nothing for {duration(self.limit_s or 0)}"
        self.failure = Failure.of(environment_failure(f"{reason}{self._see_log()}"))
        self._kill()
        return False

    def _see_log(self) -> str:
        return f" (see {self.log})" if self.log else ""

    def crash(self) -> QuantlineError:
        """Why it ended without a message, from its exit status and the end of its log."""
        code = self.process.wait()
        text = self.log.read_text(errors="replace") if self.log else NO_LOG
        cause = ending(code, text, self.kills_before)
        return environment_failure(f"{self.called} {cause}{self._see_log()}")

    def close(self) -> None:
        """Kills it and all processes that it started."""
        if self.is_closed:
            return
        self.is_closed = True
        self._kill()
        self.begin()
        self.pipe.close()
        os.close(self.life_line)

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def start(
    program: Program[Request, Event],
    request: Request,
    log: Path | None,
    environment: Mapping[str, str] | None = None,
) -> Running[Event]:
    """Starts a module of ours and sends its request; `begin` lets it start its work."""
    command = [sys.executable, "-m", program.module]
    if log is not None:
        log.write_bytes(b"")
    running = Running(command, program.events, program.name, log, environment)
    running.send(request)
    return running


def stream(
    program: Program[Request, Event],
    request: Request,
    log: Path | None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Event]:
    """Runs a module of ours to its end, and yields its events as they arrive."""
    with closing(start(program, request, log, environment)) as running:
        running.begin()
        yield from running.events()


def call(
    program: Program[Request, Event], request: Request, shows_output: bool = False
) -> list[Event]:
    """Runs a module of ours to its end and returns its events. A log is kept only if it failed."""
    log = None if shows_output else log_file(f"{program.module}-{os.getpid()}")
    events = list(stream(program, request, log))
    if log is not None:
        log.unlink(missing_ok=True)
    return events


def call_one(
    program: Program[Request, Event], request: Request, shows_output: bool = False
) -> Event:
    """Runs a module of ours that sends a single event, and returns that."""
    (answer,) = call(program, request, shows_output)
    return answer
