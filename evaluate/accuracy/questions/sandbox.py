"""Runs programs that a model wrote, each in a sandbox of its own (`sandbox_process.py`)."""

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from conf.errors import bad_input, environment_failure, last_line

SCRIPT = Path(__file__).with_name("sandbox_process.py")
READY = b"ready\n"
NAMESPACES = ("--user", "--map-root-user", "--net", "--pid", "--ipc", "--uts", "--mount")
MOST_READ = 4096
OPTION = "accuracy.run_code=true"


@dataclass(frozen=True)
class Limits:
    """What one program may use."""

    wall_seconds: float = 30.0
    cpu_seconds: int = 10
    memory_megabytes: int = 1024
    file_megabytes: int = 16
    """Size of a file, and of all files together; they are in memory."""
    processes: int = 16
    """Threads. New processes are refused."""


DEFAULT_LIMITS = Limits()


def passes(program: str, limits: Limits = DEFAULT_LIMITS) -> bool:
    """Whether the program runs to its end without an error. Leaving early is an error, too."""
    token = secrets.token_hex(16)
    request = asdict(limits) | {"program": program, "token": token}
    reading, writing = os.pipe()
    with tempfile.TemporaryDirectory(prefix="quantline-") as folder:
        command = [_unshare(), *NAMESPACES, "--fork", "--kill-child", "--"]
        command += [sys.executable, "-I", "-S", str(SCRIPT), folder, str(writing)]
        try:
            errors = _run(command, json.dumps(request).encode(), writing, folder, limits)
            said = os.read(reading, MOST_READ)
        finally:
            os.close(reading)
    if not said.startswith(READY):
        raise environment_failure(f"{OPTION}: the sandbox could not be made: {last_line(errors)}")
    return said == READY + token.encode()


def _run(command: list[str], request: bytes, writing: int, folder: str, limits: Limits) -> str:
    """Runs the command until it ends or its time is over. Returns its error output."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=(writing,),
            env={},
            cwd=folder,
            start_new_session=True,
        )
    finally:
        os.close(writing)  # so that reading ends with the program
    try:
        _, errors = process.communicate(request, timeout=limits.wall_seconds)
    except subprocess.TimeoutExpired:
        process.kill()  # with it the namespace's first process, and so all of them
        _, errors = process.communicate()
    return errors.decode(errors="replace")


@cache
def _unshare() -> str:
    path = shutil.which("unshare")
    if path is None:
        raise bad_input(f"{OPTION}: there is no `unshare` here, which makes the sandbox")
    return path


def check_sandbox() -> None:
    """Raises where this machine cannot make the sandbox, or where the sandbox has a hole."""
    if not sys.platform.startswith("linux"):
        raise bad_input(f"{OPTION}: the sandbox works on Linux only")
    try:
        is_closed = passes(f"HIDDEN = {_hidden()!r}{CLOSED}") and not passes("raise SystemExit")
    except Exception as error:
        raise bad_input(
            f"{error}; this machine allows no user namespaces. Leave {OPTION} out, or run where "
            "they are allowed"
        ) from error
    if not is_closed:
        raise bad_input(f"{OPTION}: the sandbox is not closed on this machine; nothing is run")


def _hidden() -> list[str]:
    """Paths of this machine that no program may see. Python itself may lie in the home folder."""
    folders = [Path("/etc"), Path("/proc"), Path("/dev"), Path("/tmp"), Path.cwd()]
    python = Path(sys.base_prefix).resolve()
    at_home = [path for path in Path.home().iterdir() if not python.is_relative_to(path.resolve())]
    return [str(path) for path in (*folders, *at_home) if not python.is_relative_to(path)]


# What the sandbox must keep from a program, tried from inside before any answer is run.
CLOSED = """
import os, socket
assert sorted(os.listdir('/work')) == []
assert not any(map(os.path.exists, HIDDEN))
assert dict(os.environ).keys() <= {'LC_CTYPE'}, os.environ
for attempt in (
    os.fork,
    lambda: os.execv('/usr/bin/env', ['env']),
    lambda: socket.create_connection(('127.0.0.1', 22), 1),
    lambda: open('/usr/quantline', 'w'),
):
    try:
        attempt()
    except OSError:
        continue
    raise SystemExit(attempt)
"""
