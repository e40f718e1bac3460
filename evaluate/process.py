"""The process that holds an engine: started, listened to, and never left behind."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from conf.errors import QuantlineError, world_fault
from serve.endings import ending, oom_kills
from serve.engine import environment


def run_worker(module: str, job: dict[str, Any], log: Path) -> Iterator[dict[str, Any]]:
    """Starts the worker and yields its events as they come; its chatter goes to a log file."""
    reading, writing = os.pipe()
    # The worker holds one end of the life line, we the other: it closes with us, however we end.
    held, life_line = os.pipe()
    log.write_bytes(b"")
    with log.open("ab") as chatter:
        worker = subprocess.Popen(
            [sys.executable, "-m", module, str(writing), str(held)],
            stdin=subprocess.PIPE,
            stdout=chatter,
            stderr=chatter,
            pass_fds=[writing, held],
            env=environment(),
            start_new_session=True,
        )
    os.close(writing)
    os.close(held)
    kills_before = oom_kills()
    refused: QuantlineError | None = None
    try:
        assert worker.stdin is not None
        worker.stdin.write(json.dumps(job).encode())
        worker.stdin.close()
        with os.fdopen(reading, encoding="utf-8") as events:
            for line in events:
                event = json.loads(line)
                if event["event"] == "refused":
                    refused = QuantlineError(event["error"], event["code"])
                else:
                    yield event
        worker.wait()
    finally:
        # An engine of several processes must not outlive its worker, however that ended.
        with suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        os.close(life_line)
        worker.wait()
    if refused is not None:
        raise refused
    if worker.returncode:
        words = ending(worker.returncode, log.read_text(errors="replace"), kills_before)
        raise world_fault(f"the engine {words} (see {log})")
