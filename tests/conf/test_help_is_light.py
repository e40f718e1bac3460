"""`--help` of every module that can be run answers at once: it imports nothing heavy."""

import ast
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from conf import ROOT

PACKAGES = ("conf", "quantize", "evaluate", "serve", "quantline", "locks")
HEAVY = {"torch", "vllm", "transformers", "llmcompressor", "compressed_tensors", "matplotlib"}


def is_main_guard(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"


def runnable_modules() -> list[str]:
    """Every module of ours that does something after `python -m`."""
    found = []
    for path in sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py")):
        content = ast.parse(path.read_text(encoding="utf-8"))
        if path.name == "__main__.py" or any(is_main_guard(node) for node in content.body):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found.append(name.removesuffix(".__main__"))
    return found


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("help")
    result = subprocess.run(
        [sys.executable, "-m", "tests.conf.help_in_forks", *runnable_modules()],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert list(folder.iterdir()) == []
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    return {line["module"]: line for line in lines}


def test_all_commands_are_found() -> None:
    modules = runnable_modules()
    assert len(modules) > 30
    assert {"quantize", "evaluate.limits", "quantize.parallel.simulation"} <= {*modules}


@pytest.mark.parametrize("module", runnable_modules())
def test_help_imports_nothing_heavy(module: str, answers: dict[str, Any]) -> None:
    answer = answers[module]
    assert answer["code"] == 0, answer["printed"]
    assert answer["printed"].strip()
    assert "Traceback" not in answer["printed"]
    assert HEAVY & {*answer["imports"]} == set()
