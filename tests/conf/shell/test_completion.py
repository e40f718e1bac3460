"""Completion: of words, and through bash itself as its readline calls the script."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conf import ROOT, sources
from conf.entry import COMMANDS
from conf.shell.completion import SCRIPT, completions
from evaluate.command import COMMAND as EVALUATE
from quantize.command import COMMAND as QUANTIZE
from serve.command import COMMAND as SERVE
from tests.conftest import Run

W8 = [name for name in sources.choices("recipe", [sources.RECIPES]) if name.startswith("w8")]


@pytest.mark.parametrize(
    ("command", "word", "expected"),
    [
        (QUANTIZE, "recipe=w8", [f"recipe={name}" for name in W8]),
        (QUANTIZE, "recipe=fp8_dynamic,w8a8_smooth_p", ["recipe=fp8_dynamic,w8a8_smooth_ptq"]),
        (QUANTIZE, "rec", ["recipe.", "recipe="]),
        (QUANTIZE, "recipe.gptq.d", ["recipe.gptq.dampening="]),
        (QUANTIZE, "lm_head=", ["lm_head=fp8", "lm_head=int4", "lm_head=int8"]),
        (QUANTIZE, "replace=t", ["replace=true"]),
        (QUANTIZE, "nothing=x", []),
        (EVALUATE, "scenario=[base,interac", ["scenario=[base,interactive"]),
        (EVALUATE, "--l", ["--list"]),
        (SERVE, "recipe=w8a8_smooth_g", ["recipe=w8a8_smooth_gptq"]),
        (SERVE, "recipe_n", []),
        (SERVE, "po", ["port="]),
        (SERVE, "port=", []),
    ],
)
def test_words(command, word: str, expected: list[str]) -> None:
    assert completions(command, word) == sorted(expected)


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models" / "mine").mkdir(parents=True)
    (tmp_path / "model.txt").touch()
    (tmp_path / ".hidden").touch()
    monkeypatch.chdir(tmp_path)
    assert completions(QUANTIZE, "model.path=mod") == [
        "model.path=model.txt",
        "model.path=models/",
    ]
    assert completions(QUANTIZE, "model.path=") == completions(QUANTIZE, "model.path=mod")
    assert completions(QUANTIZE, "model.path=models/") == ["model.path=models/mine/"]
    assert completions(QUANTIZE, "model.path=nowhere/") == []


def completed(line: str, folder: Path) -> list[str]:
    """COMPREPLY after the script's function ran on a line, with the cursor at its end."""
    for name, call in (("python", ""), ("quantline", "-m quantline")):
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {call} "$@"\n')
        program.chmod(0o755)
    script = (
        f"source {shlex.quote(str(SCRIPT))}\n"
        f"COMP_LINE={shlex.quote(line)} COMP_POINT={len(line)}\n"
        '_quantline_completion; printf "%s\\n" "${COMPREPLY[@]}"\n'
        "complete -p quantline python > /dev/null"
    )
    variables = {"PATH": f"{folder}:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(folder)}
    result = subprocess.run(
        ["bash", "--norc", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=variables,
        cwd=folder,
    )
    assert result.stderr == ""
    return result.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        # Bash takes `=` for a separator: the replies are what follows it.
        ("python -m quantize model=tiny recipe=w8", W8),
        ("quantline quantize recipe=w8", W8),
        ("quantline eval", [name for name, _, _ in COMMANDS if name.startswith("eval")]),
        ("quantline serve po", ["port="]),
        # In an open quote the replies are whole words.
        ("python -m evaluate 'scenario=[base,interac", ["scenario=[base,interactive"]),
        ('quantline quantize "recipe=fp8_dy', ["recipe=fp8_dynamic"]),
        ("python -m http.server recipe=w8", []),
        ("python script.py recipe=w8", []),
    ],
)
def test_bash(line: str, expected: list[str], tmp_path: Path) -> None:
    assert completed(line, tmp_path) == sorted(expected)


@pytest.mark.parametrize("words", [("quantize",), ("quantline",)])
def test_the_script_is_printed(command_here: Run, words: tuple[str, ...]) -> None:
    for flag in ("--shell-completion", "-sc"):
        result = command_here(*words, flag, "install=bash")
        assert (result.returncode, result.stdout) == (0, SCRIPT.read_text())


@pytest.mark.parametrize(
    ("value", "expected"),
    [("install=zsh", "Known: bash."), ("uninstall=bash", "write install=bash")],
)
@pytest.mark.parametrize("module", ["quantize", "quantline"])
def test_other_shells_are_refused(
    command_here: Run, module: str, value: str, expected: str
) -> None:
    result = command_here(module, "--shell-completion", value)
    assert result.returncode == 2
    assert expected in result.stderr
    assert len(result.stderr.splitlines()) == 1
