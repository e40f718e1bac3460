"""Runs scripts with Triton, which is not in the main environment where there is no GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
TRITON = ROOT / ".triton"
needs_triton = pytest.mark.skipif(
    not (TRITON / "triton").is_dir(), reason="there is no .triton: make setup-triton"
)


def printed_by(module: str, **variables: str) -> list[dict[str, Any]]:
    """The JSON lines that a module prints in a process of its own: Triton decides at its import
    whether it interprets."""
    result = subprocess.run(
        [sys.executable, "-m", module],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{TRITON}", **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def interpreted(module: str) -> dict[str, float]:
    """The errors that a module prints by name, its kernels run in Triton's interpreter."""
    return {line["name"]: line["error"] for line in printed_by(module, TRITON_INTERPRET="1")}
