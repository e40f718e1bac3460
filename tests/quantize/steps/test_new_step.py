"""A new algorithm is one new file: options, help, checks and the run all know it."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conf.schema.steps import Kind, known_steps
from tests.conftest import ROOT

HERE = Path(__file__).parent
STEPS = ROOT / "quantize" / "steps"
LIGHT = ("step", "rescaling")
SCHEMA = "conf.schema.steps"


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process sees that has `new_step/wanda.py` beside our algorithms."""
    scratch = tmp_path_factory.mktemp("new_step")
    result = subprocess.run(
        [sys.executable, HERE / "with_new_step.py", HERE / "new_step", scratch],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    assert isinstance(found, dict)
    return found


def test_no_other_file_knows_it() -> None:
    assert "wanda" not in known_steps()
    for package in ("conf", "quantize", "recipes"):
        for path in (ROOT / package).rglob("*.*"):
            if path.suffix in (".py", ".yaml"):
                assert "wanda" not in path.read_text().lower(), path


def test_help_shows_its_options_and_its_place(facts: dict[str, Any]) -> None:
    assert (
        "recipe.wanda.sparsity=0.5 Share of the weights that become zero. (0.25 to"
        in (facts["help"])
    )
    order = (
        "The steps in their order: smoothquant, awq, wanda, sparsegpt; then rounding, gptq, vptq"
    )
    assert order in facts["help"]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("range", "recipe.wanda.sparsity=0.9: must be at least 0.25 and at most 0.5"),
        ("step", "recipe.steps=wnada: choose one of smoothquant, awq, wanda, sparsegpt, rounding"),
        ("step", "Did you mean wanda?"),
        ("option", "Did you mean recipe.wanda?"),
        ("key", "typo.yaml:3: wanda.sparsty: key: there is no 'sparsty'. Did you mean sparsity?"),
        ("order", "the last step has to round"),
    ],
)
def test_complaints_know_it(case: str, message: str, facts: dict[str, Any]) -> None:
    assert message in facts[case]


def test_preflight_asks_it_what_it_needs(facts: dict[str, Any]) -> None:
    assert facts["plan"][0] == "14 modules, wanda, then rounding"
    assert "on a GPU, 7.0 GiB there" in facts["plan"][1]
    assert facts["is_sparse"]


def test_it_passes_through_the_layers_and_is_checked(facts: dict[str, Any]) -> None:
    layers = facts["timed"]["wanda"]
    assert layers >= 2
    assert facts["calls"] == [
        "check_model wanda of model",
        *["a layer"] * layers,
        "check_changes of 14 modules",
    ]
    assert min(facts["zeros"]) >= 0.5


def test_a_recipe_file_may_name_its_modifier(facts: dict[str, Any]) -> None:
    assert facts["file"]["steps"] == ["wanda", "rounding"]
    assert facts["file"]["targets"] == ["re:.*_proj$"]
    assert "mask_structure: '4:8': must be '2:4'" in facts["file"]["mask"]


def test_our_algorithms_are_found_in_the_order_of_help() -> None:
    assert [(name, step.kind) for name, step in known_steps().items()] == [
        ("smoothquant", Kind.TRANSFORMS),
        ("awq", Kind.TRANSFORMS),
        ("sparsegpt", Kind.PRUNES),
        ("rounding", Kind.ROUNDS),
        ("gptq", Kind.ROUNDS),
        ("vptq", Kind.ROUNDS),
        ("autoround", Kind.ROUNDS),
    ]


def test_every_module_of_the_folder_is_an_algorithm() -> None:
    modules = {path.stem for path in STEPS.glob("*.py")} - {"__init__"}
    assert modules == set(known_steps())


def read_by_every_command() -> list[Path]:
    """The algorithms, and what they import at their top level."""
    return [*STEPS.glob("*.py"), *(STEPS / "base" / f"{name}.py" for name in LIGHT)]


@pytest.mark.parametrize("path", read_by_every_command(), ids=lambda path: path.stem)
def test_the_top_level_of_an_algorithm_is_light(path: Path) -> None:
    """Every command reads it. It must not import the schema of recipes, which searches for it."""
    imported = {
        str(node.module)
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ImportFrom)
    }
    light = {f"quantize.steps.base.{name}" for name in LIGHT}
    ours = {name for name in imported if name.split(".")[0] in ("conf", "quantize")}
    assert ours <= light | {"conf.errors", "conf.formats.quant_args", "conf.schema.ranges", SCHEMA}
    assert {name.split(".")[0] for name in imported - ours} <= sys.stdlib_module_names
