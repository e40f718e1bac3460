"""Why a process ended: its exit status, whether memory ran out, and the end of its log."""

import re
import signal
from pathlib import Path

from conf.errors import last_line

CGROUPS = Path("/proc/self/cgroup")
MOUNT = Path("/sys/fs/cgroup")
OOM_KILL = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
ERROR = re.compile(r"\w*(?:Error|Exception)\b: |\berror: ")
HARMLESS = re.compile(r"\b(?:DEBUG|INFO|WARNING) \d\d-\d\d ")  # as vLLM marks its lines
UNSPECIFIC = ("See root cause above", "EngineDeadError", 'HTTP/1.1"')
VALIDATION = "validation error for"
BY_SHELL = 128  # a shell or a container adds it to the number of the signal
LAST_LINES = 2
LONGEST_LINE = 160


def oom_kills() -> int:
    """How many processes of this container, or of its group, the kernel has killed for lack of
    memory; 0 where the kernel does not report it."""
    try:
        entries = [line.split(":", 2) for line in CGROUPS.read_text().splitlines()]
    except OSError:
        return 0
    kills = 0
    for _, controllers, path in entries:
        group_path = path.lstrip("/")
        for file in (
            MOUNT / group_path / "memory.events",
            MOUNT / "memory.events",
            MOUNT / "memory" / group_path / "memory.oom_control",
            MOUNT / "memory" / "memory.oom_control",
        ):
            if controllers in ("", "memory"):
                kills = max(kills, _count(file))
    return kills


def _count(file: Path) -> int:
    try:
        match = OOM_KILL.search(file.read_text())
    except OSError:
        return 0
    return int(match[1]) if match else 0


def ending(code: int, log: str, kills_before: int) -> str:
    """How a process ended, in one line: a signal and the last lines of its log, or an exit code
    and the error in its log."""
    number = -code if code < 0 else code - BY_SHELL
    if number not in list(signal.Signals):
        return f"stopped with {code}: {reason_in(log)}"
    hint = ""
    if number == signal.SIGKILL:
        hint = "; the system may have been out of memory"
        if oom_kills() > kills_before:
            hint = ": the system was out of memory"
    return f"was ended by {signal.Signals(number).name}{hint}; {last_lines(log)}"


def last_lines(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()][-LAST_LINES:]
    shown = [line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}..." for line in lines]
    return f"its log ends with: {' / '.join(shown)}" if shown else "its log is empty"


def reason_in(log: str) -> str:
    """The last line of a log that names a specific error, else any error, else the last line."""
    lines = [line for line in log.splitlines() if not HARMLESS.search(line)]
    error_lines = [line for line in lines if ERROR.search(line)]
    specific_lines = [
        line for line in error_lines if not any(phrase in line for phrase in UNSPECIFIC)
    ]
    reason = (specific_lines or error_lines or [last_line(log)])[-1]
    detail = _validation_detail(lines, reason) if VALIDATION in reason else ""
    return reason.strip().removeprefix("error: ") + detail


def _validation_detail(lines: list[str], reason: str) -> str:
    """What was wrong by pydantic, which says it below its error, before the input."""
    place = len(lines) - 1 - lines[::-1].index(reason)
    details = [line.partition(" [type=")[0].strip() for line in lines[place + 1 :]]
    faults = [line for line in details if line.startswith("Value error, ")]
    return f": {faults[0].removeprefix('Value error, ')}" if faults else ""
