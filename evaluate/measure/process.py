"""The process that holds an engine: started, listened to, and never left behind."""

import json
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from conf.errors import QuantlineError, world_fault
from serve.engine.endings import ending, oom_kills
from serve.engine.launch import environment


class Worker:
    """A started worker. Its job is the first line of its standard input; the end of that input is
    the sign that it may measure."""

    def __init__(
        self, module: str, job: dict[str, Any], log: Path, variables: dict[str, str] | None = None
    ) -> None:
        """Its chatter goes to a log file."""
        reading, writing = os.pipe()
        # The worker holds one end of the life line, we the other: it closes with us, however we
        # end.
        self.life_line: int | None
        held, self.life_line = os.pipe()
        log.write_bytes(b"")
        self.log, self.kills_before = log, oom_kills()
        with log.open("ab") as chatter:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, str(writing), str(held)],
                stdin=subprocess.PIPE,
                stdout=chatter,
                stderr=chatter,
                pass_fds=[writing, held],
                env=environment() | (variables or {}),
                start_new_session=True,
            )
        os.close(writing)
        os.close(held)
        self.pipe = os.fdopen(reading, encoding="utf-8")
        self.early: deque[dict[str, Any]] = deque()
        assert self.process.stdin is not None
        self.input = self.process.stdin
        with suppress(BrokenPipeError):  # one that is dead already says why in its log
            self.input.write(json.dumps(job).encode() + b"\n")
            self.input.flush()

    def wait_until(self, name: str) -> None:
        """Waits for an event, or for the worker's end; what comes is kept for later."""
        for line in self.pipe:
            self.early.append(json.loads(line))
            if self.early[-1]["event"] == name:
                return

    def measure(self) -> Iterator[dict[str, Any]]:
        """Lets it measure, and yields its events as they come; raises where it failed."""
        with suppress(BrokenPipeError):
            self.input.close()
        refused: QuantlineError | None = None
        for event in self._events():
            if event["event"] == "refused":
                refused = QuantlineError(event["error"], event["code"])
            else:
                yield event
        self.process.wait()
        if refused is not None:
            raise refused
        if self.process.returncode:
            text = self.log.read_text(errors="replace")
            words = ending(self.process.returncode, text, self.kills_before)
            raise world_fault(f"the engine {words} (see {self.log})")

    def _events(self) -> Iterator[dict[str, Any]]:
        while self.early:
            yield self.early.popleft()
        for line in self.pipe:
            yield json.loads(line)

    def close(self) -> None:
        """An engine of several processes must not outlive its worker, however that ended."""
        if self.life_line is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        with suppress(BrokenPipeError):
            self.input.close()
        self.pipe.close()
        os.close(self.life_line)
        self.life_line = None


def run_worker(module: str, job: dict[str, Any], log: Path) -> Iterator[dict[str, Any]]:
    """Starts a worker that measures at once, and yields its events as they come."""
    with closing(Worker(module, job, log)) as worker:
        yield from worker.measure()
