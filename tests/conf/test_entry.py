"""What every command has: its own help, our version, and readers that stop early."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conf import ROOT, entry
from conf.entry import COMMANDS, MODULES, as_called, set_child_import_path
from tests.conftest import Run

FAST = (
    *("quantize", "quantize.verify", "evaluate", "evaluate.compare", "evaluate.report"),
    *("evaluate.limits", "evaluate.benchmark", "evaluate.kernels", "serve", "serve.kernels"),
    *("evaluate.traffic", "evaluate.traffic_check", "evaluate.tune", "evaluate.merge"),
    *("evaluate.sweep.benchmark", "quantize.benchmark"),
)


def test_every_command_is_tested() -> None:
    assert {module for _, module, _ in COMMANDS} == {*FAST}


@pytest.mark.parametrize("module", FAST)
def test_each_command_has_its_own_help_and_our_version(
    module: str, run_command: Run, command_here: Run
) -> None:
    check_flags(module, run_command, command_here)


def check_flags(module: str, run_command: Run, command_here: Run) -> None:
    """The help from a process of its own, the version from this one."""
    shown = run_command(module, "--help")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.splitlines()[0].split("[")[0].split("PATH")[0].strip() == (
        f"python -m {module}"
    )
    version = command_here(module, "--version")
    assert (version.returncode, version.stdout) == (0, "quantline 0.1.0\n")


@pytest.mark.parametrize("words", [["--help"], ["quantise"], [], ["--versoin"]])
def test_the_script_in_the_repository(words: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "quantline", *words]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == (0 if words == ["--help"] else 2)
    said = result.stdout + result.stderr
    assert "Traceback" not in said
    expected = {"quantise": "Did you mean quantize?", "--versoin": "--versoin"}
    assert expected.get("".join(words), "quantline COMMAND") in said


def test_the_script_runs_a_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "quantline", "quantize", "recipe=nope"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "there is no 'nope'" in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["-m", "quantize", "--help"],
        ["-m", "evaluate", "--cfg", "job"],
        ["-m", "serve", "--help"],
        ["-m", "evaluate.report", "--help"],
        ["-m", "evaluate.limits", "--help"],
        ["-m", "quantize", "--version"],
        ["-m", "quantline", "--help"],
    ],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_stops_early_is_no_error(
    words: list[str], unbuffered: str, tmp_path: Path
) -> None:
    """As `head` does: here nobody reads at all, so that every write fails."""
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.run(
        [sys.executable, *words],
        cwd=tmp_path,
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        check=False,
    )
    os.close(writing)
    assert process.stderr == ""
    assert process.returncode in (0, entry.CLOSED_PIPE)


def test_what_is_said_to_nobody_is_no_error(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "quantize", "recipe=nope"]
    process = subprocess.run(command, cwd=tmp_path, stdout=writing, stderr=writing, check=False)
    os.close(writing)
    assert process.returncode in (2, entry.CLOSED_PIPE)


def test_a_wheel_names_its_own_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "`python -m evaluate.report x` after python -m quantize.models.fetch or python -m pip"
    assert as_called(text) == text
    monkeypatch.setattr(entry, "IS_WHEEL", True)
    assert as_called(text) == (
        "`quantline report x` after python -m quantize.models.fetch or python -m pip"
    )


def test_every_module_has_its_name() -> None:
    assert MODULES["report"] == MODULES["evaluate.report"] == "evaluate.report"


def test_processes_look_for_our_packages_here_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["/theirs", str(ROOT), ""]))
    monkeypatch.setenv("PYTHONSAFEPATH", "")  # it is set back afterwards
    set_child_import_path()
    assert os.environ["PYTHONPATH"] == os.pathsep.join([str(ROOT), "/theirs"])
    assert os.environ["PYTHONSAFEPATH"] == "1"
