"""Sweeps of the stand-in measurement, in a process of their own, and what they leave."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conf.launch.standin import GATES, TINY

SECONDS_TO_WAIT = 300  # on a busy machine; a test that passes never waits so long


@dataclass
class SweepRun:
    """A call of `python -m evaluate -m ...` in a folder, with the stand-in measurement."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)

    def start(self, *arguments: str, **variables: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "tests.conf.launch.standin", "-m", *TINY, *arguments]
        return subprocess.Popen(
            [*command, "original=false", "launcher.poll_s=0.2"],
            cwd=self.folder,
            env=os.environ | self.variables | {GATES: str(self.folder / "gates")} | variables,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **variables: str) -> tuple[int, str]:
        """The exit code and what was said."""
        return ended(self.start(*arguments, **variables))

    def open_gates(self, *repeats: int) -> None:
        (self.folder / "gates").mkdir(exist_ok=True)
        for repeat in repeats:
            (self.folder / "gates" / f"go-{repeat}").touch()

    @property
    def sweep_folder(self) -> Path:
        return self.folder / "results.jsonl.d"

    def record(self, recipe: str) -> dict[str, Any]:
        (path,) = self.sweep_folder.glob(f"tiny-{recipe}-interactive-*.json")
        content: dict[str, Any] = json.loads(path.read_text())
        return content

    def shard_rows(self, recipe: str) -> list[dict[str, Any]]:
        return rows_of(next(self.sweep_folder.glob(f"tiny-{recipe}-*.jsonl"), Path("none")))

    def rows(self) -> list[dict[str, Any]]:
        return rows_of(self.folder / "results.jsonl")


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a file that a job may be writing: its last line may be there by half."""
    if not path.is_file():
        return []
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def runs_of(rows: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return sorted((row["checkpoint"], row["repeat"]) for row in rows)


def ended(process: "subprocess.Popen[str]") -> tuple[int, str]:
    try:
        _, errors = process.communicate(timeout=SECONDS_TO_WAIT)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, errors


def wait_until(is_so: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    """Waits for what a running sweep will do."""
    deadline = time.monotonic() + SECONDS_TO_WAIT
    while not is_so():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise AssertionError(f"the sweep has not come so far: {ended(process)}")
        time.sleep(0.05)


def said_until(process: "subprocess.Popen[str]", text: str) -> str:
    """What a running sweep says, up to a line with this text."""
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if text in line:
            return said
    raise AssertionError(f"it ended without {text!r}: {said}")
