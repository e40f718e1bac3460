"""A process that has imported vLLM, and forks the workers of tests that measure.

Importing vLLM takes ten times as long as a tiny model's engine. What runs in a fork is the worker's
module, in a session of its own, with the variables and files that it would be started with.

Called as `python -m tests.fork_server SOCKET`; a `ForkServer` asks it for workers.
"""

import ctypes
import fcntl
import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from conf.process.guard import kill_group_after
from conf.process.running import Start, spawn

MODULE = "evaluate.measure.worker"
FREE = 300  # the first number of descriptors that no worker uses
LONGEST_REQUEST = 1 << 20
START_LIMIT_S = 900
END_WITH_PARENT = 1  # PR_SET_PDEATHSIG


@dataclass(frozen=True)
class Worker:
    """What a fork becomes. The files come beside it."""

    arguments: list[str]
    environment: dict[str, str]
    folder: str
    targets: list[int]
    """The number that each file has in the worker; the life line is the last."""


class Forked(subprocess.Popen[bytes]):
    """A process that the server forked: what `Running` uses of a process that it started."""

    def __init__(self, connection: socket.socket, pid: int, stdin: IO[bytes]) -> None:
        self.connection, self.pid, self.stdin = connection, pid, stdin
        self.stdout = self.stderr = None
        self.args, self.returncode = MODULE, None  # type: ignore[assignment]

    def __del__(self) -> None:
        self.connection.close()

    def poll(self) -> int | None:
        return self._ended(socket.MSG_DONTWAIT)

    def wait(self, timeout: float | None = None) -> int:
        self.connection.settimeout(timeout)
        code = self._ended(0)
        assert code is not None
        return code

    def _ended(self, flags: int) -> int | None:
        if self.returncode is None:
            with suppress(BlockingIOError):
                self.returncode = int(self.connection.recv(16, flags) or -signal.SIGKILL)
        return self.returncode


class ForkServer:
    """A server that is started with the first worker."""

    def __init__(self) -> None:
        self.server: subprocess.Popen[bytes] | None = None
        self.address = Path(tempfile.mkdtemp(prefix="quantline-fork-")) / "socket"

    def spawn(self, start: Start) -> subprocess.Popen[bytes]:
        """`conf.process.running.spawn`, which starts all other modules."""
        if start.command[:3] != [sys.executable, "-m", MODULE]:
            return spawn(start)
        if self.server is None:
            self._start()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(str(self.address))
        read_end, write_end = os.pipe()
        worker = Worker(
            start.command[3:],
            dict(os.environ if start.environment is None else start.environment),
            start.folder or str(Path.cwd()),
            [0, 1, 2, start.pipe, start.life_line],
        )
        output = start.output.fileno()
        files = [read_end, output, output, start.pipe, start.life_line]
        socket.send_fds(connection, [json.dumps(asdict(worker)).encode()], files)
        os.close(read_end)
        pid = int(connection.recv(16))
        return Forked(connection, pid, os.fdopen(write_end, "wb", buffering=0))

    def _start(self) -> None:
        self.server = subprocess.Popen([sys.executable, "-m", "tests.fork_server", self.address])
        limit = time.monotonic() + START_LIMIT_S
        while not self.address.exists():
            assert self.server.poll() is None, "the server of forks did not start"
            assert time.monotonic() < limit
            time.sleep(0.1)

    def stop(self) -> None:
        if self.server is not None:
            self.server.kill()
            self.server.wait()
        shutil.rmtree(self.address.parent)


def main() -> None:
    ctypes.CDLL(None).prctl(END_WITH_PARENT, signal.SIGKILL)
    before = dict(os.environ)
    import vllm.entrypoints.llm  # noqa: F401

    import evaluate.measure.worker  # noqa: F401

    imported = {name: value for name, value in os.environ.items() if before.get(name) != value}
    address = Path(sys.argv[1])
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(str(address.with_suffix(".new")))
    listening.listen(64)
    workers: dict[int, socket.socket] = {}

    def send_endings(*_: object) -> None:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                connection = workers.pop(ended[0])
                with suppress(BrokenPipeError):
                    connection.send(str(os.waitstatus_to_exitcode(ended[1])).encode())
                connection.close()

    signal.signal(signal.SIGCHLD, send_endings)
    address.with_suffix(".new").rename(address)
    while True:
        connection, _ = listening.accept()
        request, files, _, _ = socket.recv_fds(connection, LONGEST_REQUEST, 8)
        # An ending must find its worker in the table.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        pid = os.fork()
        if not pid:
            break
        workers[pid] = connection
        for file in files:
            os.close(file)
        connection.send(str(pid).encode())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    for unused in (listening, connection, *workers.values()):
        unused.close()
    _become(Worker(**json.loads(request)), list(files), imported)


def _become(worker: Worker, files: list[int], imported: dict[str, str]) -> None:
    """Runs the worker in this process."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    copies = [fcntl.fcntl(file, fcntl.F_DUPFD, FREE) for file in files]
    for file in files:
        os.close(file)
    for copy, target in zip(copies, worker.targets, strict=True):
        os.dup2(copy, target)
        os.close(copy)
    life_line = worker.targets[-1]
    if not os.fork():
        kill_group_after(life_line)
    os.close(life_line)
    os.environ.clear()
    os.environ.update(imported | worker.environment)
    os.chdir(worker.folder)
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[1:1] = [path for path in paths if path not in sys.path]
    sys.argv = [MODULE, *worker.arguments]
    runpy.run_module(MODULE, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
