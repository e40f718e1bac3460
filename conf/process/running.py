"""The one way to start a process of ours: nothing is left behind, failures come back as errors."""

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Generic

from conf.cache import log_file
from conf.errors import QuantlineError, world_fault
from conf.process.endings import ending, oom_kills
from conf.process.messages import Failure, decode, encode
from conf.process.program import Event, Program, Request

GUARD = Path(__file__).with_name("guard.py")
NO_LOG = "it wrote no log"


class Running(Generic[Event]):
    """A started process. It reads requests from standard input and sends events up a pipe; what it
    prints goes to a log, or to our standard error without one."""

    def __init__(
        self,
        command: list[str],
        events: tuple[type[Event], ...],
        called: str,
        log: Path | None,
        environment: Mapping[str, str] | None = None,
        folder: str | None = None,
    ) -> None:
        """The command is given the number of the pipe as its last argument. A log is added to:
        two processes may share one."""
        self.kinds, self.called, self.log = (*events, Failure), called, log
        self.kills_before = oom_kills()
        reading, writing = os.pipe()
        held, self.life_line = os.pipe()
        guarded = [sys.executable, "-I", "-S", str(GUARD), str(held), *command, str(writing)]
        try:
            with log.open("ab") if log else os.fdopen(os.dup(2), "wb") as output:
                self.process = subprocess.Popen(
                    guarded,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    pass_fds=[writing, held],
                    env=environment,
                    cwd=folder,
                    start_new_session=True,
                )
        finally:
            os.close(writing)
            os.close(held)
        assert self.process.stdin is not None
        self.input = self.process.stdin
        self.pipe = os.fdopen(reading, encoding="utf-8")
        self.early: deque[Event] = deque()
        self.failed: Failure | None = None
        self.is_closed = False

    def send(self, request: Any) -> None:
        """Hands it a request. One that is dead already says why in its log."""
        with suppress(BrokenPipeError):
            self.input.write(encode(request))
            self.input.flush()

    def begin(self) -> None:
        """Closes its standard input: there are no more requests, and it is its turn."""
        with suppress(BrokenPipeError):
            self.input.close()

    def wait_until(self, kind: type[Any]) -> None:
        """Waits for an event of this type, or for the end; what comes is kept for later."""
        for event in self._arriving():
            self.early.append(event)
            if isinstance(event, kind):
                return

    def events(self) -> Iterator[Event]:
        """Its events as they come; raises where it failed or crashed."""
        while self.early:
            yield self.early.popleft()
        yield from self._arriving()
        if self.failed is not None:
            raise self.failed.error
        if self.process.wait():
            raise self.crash()

    def _arriving(self) -> Iterator[Event]:
        for line in self.pipe:
            message = decode(line, self.kinds)
            if isinstance(message, Failure):
                self.failed = message
            else:
                yield message

    def crash(self) -> QuantlineError:
        """Why it is gone without a word, from its exit status and the end of its log."""
        code = self.process.wait()
        text = self.log.read_text(errors="replace") if self.log else NO_LOG
        where = f" (see {self.log})" if self.log else ""
        return world_fault(f"{self.called} {ending(code, text, self.kills_before)}{where}")

    def close(self) -> None:
        """Ends it and all that it started."""
        if self.is_closed:
            return
        self.is_closed = True
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.begin()
        self.pipe.close()
        os.close(self.life_line)


def start(
    program: Program[Request, Event],
    request: Request,
    log: Path | None,
    environment: Mapping[str, str] | None = None,
) -> Running[Event]:
    """Starts a module of ours and hands it its request; `begin` is its turn."""
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
    """Runs a module of ours to its end, and yields its events as they come."""
    with closing(start(program, request, log, environment)) as running:
        running.begin()
        yield from running.events()


def call(
    program: Program[Request, Event], request: Request, shows_output: bool = False
) -> list[Event]:
    """Runs a module of ours to its end; all that it sent. Its log stays only where it failed."""
    log = None if shows_output else log_file(f"{program.module}-{os.getpid()}")
    events = list(stream(program, request, log))
    if log is not None:
        log.unlink(missing_ok=True)
    return events


def call_one(
    program: Program[Request, Event], request: Request, shows_output: bool = False
) -> Event:
    """The one answer of a module of ours."""
    (answer,) = call(program, request, shows_output)
    return answer
