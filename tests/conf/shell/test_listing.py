"""`--list`: every choice of every group with one line that describes it."""

import subprocess
import sys

import pytest

from conf import sources
from evaluate.command import COMMAND as EVALUATE
from quantize.command import COMMAND as QUANTIZE
from serve.command import COMMAND as SERVE
from tests.conftest import Run
from tests.test_imports import HEAVY

COMMANDS = {"quantize": QUANTIZE, "evaluate": EVALUATE, "serve": SERVE}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_choice_has_one_line_with_a_description(command_here: Run, name: str) -> None:
    result = command_here(name, "--list")
    assert (result.returncode, result.stderr) == (0, "")
    sections = result.stdout.strip().split("\n\n")
    assert [section.split("=")[0] for section in sections] == COMMANDS[name].groups
    for group, section in zip(COMMANDS[name].groups, sections, strict=True):
        rows = [line.split(maxsplit=1) for line in section.splitlines()[1:]]
        assert {row[0] for row in rows} == set(sources.choices(group, [sources.RECIPES]))
        assert all(len(row) == 2 for row in rows), f"{group}: a choice without a description"


def test_one_group(command_here: Run) -> None:
    result = command_here("quantize", "--list", "recipe")
    first, *rows = result.stdout.splitlines()
    assert first == "recipe=NAME, by default w8a8_smooth_gptq"
    assert len(rows) == len(list(sources.RECIPES.glob("*.yaml")))
    assert any(row.startswith("  fp8_dynamic ") for row in rows)
    both = command_here("evaluate", "--list", "scenario", "engine").stdout
    assert both.startswith("scenario=NAME")
    assert "\n\nengine=NAME" in both


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("evaluate", "--list", "scenarios"), "--list: there is no 'scenarios'. Did you mean"),
        (("serve", "--list", "recipe"), "Known: engine, gpu, model."),
        (("evaluate.compare", "--list"), "this command has no groups"),
    ],
)
def test_an_unknown_group_is_one_line(
    command_here: Run, arguments: tuple[str, ...], expected: str
) -> None:
    result = command_here(*arguments)
    assert result.returncode == 2
    assert expected in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_teams_choices_are_listed_too(command_here: Run, tmp_path) -> None:
    (tmp_path / "gentle.yaml").write_text("# Ours\ndefaults: [w8a8_smooth_gptq]\n")
    (tmp_path / "bare.yaml").write_text("defaults: [w8a8_smooth_gptq]\n")
    listed = command_here("quantize", "--list", "recipe", QUANTLINE_RECIPES=str(tmp_path)).stdout
    assert [line.split() for line in listed.splitlines() if "gentle" in line] == [
        ["gentle", "Ours"]
    ]
    assert "  bare\n" in listed


def test_nothing_heavy_is_imported() -> None:
    script = (
        "import sys, runpy; sys.argv = ['quantize', '--list']\n"
        "try: runpy.run_module('quantize', run_name='__main__')\n"
        "except SystemExit: pass\n"
        f"print('HEAVY', sorted(set({sorted(HEAVY)}) & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-1] == "HEAVY []"
