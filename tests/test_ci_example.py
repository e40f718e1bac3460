"""The workflow in docs/ci.md is valid YAML, and its commands compose."""

import re
import shlex
from typing import Any

import yaml

from tests.conftest import ROOT, Run

OURS = re.compile(r"python -m (?:quantize|evaluate)[^|>\n]*")


def workflow() -> dict[Any, Any]:
    (text,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "ci.md").read_text(), re.DOTALL)
    content = yaml.safe_load(text)
    assert isinstance(content, dict)
    return content


def test_the_workflow_parses_and_its_commands_compose(command_here: Run) -> None:
    content = workflow()
    (job,) = content["jobs"].values()
    assert content[True]  # YAML reads the key `on` as a truth value, and so does GitHub's schema
    assert job["runs-on"]
    assert all(("run" in step) != ("uses" in step) for step in job["steps"])
    commands = [line for step in job["steps"] for line in OURS.findall(step.get("run", ""))]
    assert len(commands) == 5
    for command in commands:
        result = command_here(*shlex.split(command)[2:], "--cfg", "job")
        assert result.returncode == 0, result.stderr
