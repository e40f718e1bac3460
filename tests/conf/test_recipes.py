"""Recipes: ours, a team's own, and every config file composes."""

from pathlib import Path

import pytest
import yaml

from conf import sources
from conf.compose import compose
from conf.errors import QuantlineError
from conf.help import summary
from evaluate.command import COMMAND as EVALUATE
from quantize.command import COMMAND as QUANTIZE
from serve.command import COMMAND as SERVE
from tests.conftest import Run

NEEDED = {
    ("model", "custom"): ["model.path=/x"],
    ("calibration", "file"): ["calibration.path=x.txt"],
    ("traffic", "file"): ["traffic.path=x.jsonl"],
    ("scenario", "none"): ["accuracy=quick"],
    ("scenario", "capacity"): ["targets.ttft_ms=500", "targets.tpot_ms=50"],
}
FILES = [
    (group, name, path)
    for group in sources.GROUPS
    for name, path in sources.choices(group, [sources.RECIPES]).items()
]


@pytest.mark.parametrize(("group", "name", "path"), FILES, ids=[f"{g}={n}" for g, n, _ in FILES])
def test_every_file_composes_in_every_command_that_takes_it(
    group: str, name: str, path: Path
) -> None:
    commands = [command for command in (QUANTIZE, EVALUATE, SERVE) if group in command.groups]
    assert commands
    for command in commands:
        config = compose(command, [f"{group}={name}", *NEEDED.get((group, name), [])])
        assert getattr(config, group) is not None
    assert summary(path), f"{path}: the first line should be a comment that says what it is"


@pytest.mark.parametrize("name", sources.choices("recipe", [sources.RECIPES]))
def test_a_recipe_says_what_it_is_and_when_to_use_it(name: str) -> None:
    recipe = compose(QUANTIZE, [f"recipe={name}"]).recipe
    assert recipe.name == name
    assert recipe.description
    assert recipe.when
    assert recipe.hardware


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "team"
    folder.mkdir()
    monkeypatch.setenv(sources.TEAM_FOLDERS, str(folder))
    return folder


def test_a_teams_recipe_builds_on_ours(team: Path) -> None:
    (team / "gentle.yaml").write_text(
        "# ours, smoothed less\n"
        "defaults: [w8a8_smooth_gptq]\n"
        "smoothquant: {smoothing_strength: 0.5}\n"
    )
    recipe = compose(QUANTIZE, ["recipe=gentle", "recipe.gptq.dampening=0.05"]).recipe
    assert recipe.name == "gentle"
    assert recipe.steps == ["smoothquant", "gptq"]
    assert recipe.smoothquant.smoothing_strength == 0.5
    assert recipe.gptq.dampening == 0.05


def test_a_teams_folder_holds_other_groups_too(team: Path) -> None:
    (team / "scenario").mkdir()
    (team / "scenario" / "our_chat.yaml").write_text(
        "our_chat: {batch: 3, input_tokens: 5, output_tokens: 7}\n"
    )
    scenarios = compose(EVALUATE, ["scenario=[our_chat,base]"]).scenario
    assert scenarios["our_chat"].batch == 3
    assert scenarios["base"].batch == 32


def test_a_folder_is_added_by_hydras_search_path_too(tmp_path: Path, command_here: Run) -> None:
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "plain.yaml").write_text("steps: [rounding]\n")
    result = command_here(
        "quantize", "--cfg", "job", f"hydra.searchpath=[recipes://{folder}]", "recipe=plain"
    )
    assert result.returncode == 0, result.stderr
    assert yaml.safe_load(result.stdout)["recipe"]["steps"] == ["rounding"]


def test_a_name_in_two_places_is_an_error_that_names_both(team: Path) -> None:
    (team / "w8a8_smooth_gptq.yaml").write_text("steps: [rounding]\n")
    with pytest.raises(QuantlineError) as error:
        compose(QUANTIZE, [])
    assert str(team / "w8a8_smooth_gptq.yaml") in str(error.value)
    assert str(sources.RECIPES / "w8a8_smooth_gptq.yaml") in str(error.value)


def test_a_wrong_field_names_the_file_and_the_nearest(team: Path, command_here: Run) -> None:
    (team / "typo.yaml").write_text("stepz: [rounding]\n")
    result = command_here("quantize", "recipe=typo")
    assert result.returncode == 2
    assert f"{team / 'typo.yaml'}:1: stepz: " in result.stderr
    assert "Did you mean steps?" in result.stderr


def test_a_missing_team_folder_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sources.TEAM_FOLDERS, "/nowhere/recipes")
    with pytest.raises(QuantlineError, match="QUANTLINE_RECIPES: there is no folder /nowhere"):
        compose(QUANTIZE, [])


def test_the_standard_scenario_is_the_seven() -> None:
    cases = {
        name: (case.batch, case.input_tokens, case.output_tokens)
        for name, case in compose(EVALUATE, ["scenario=standard"]).scenario.items()
    }
    assert cases == {
        "interactive": (1, 128, 64),
        "decode_bound": (1, 256, 512),
        "prefill_bound": (1, 2048, 32),
        "long_context": (1, 16384, 32),
        "medium_batch": (8, 256, 128),
        "base": (32, 256, 32),
        "high_concurrency": (64, 256, 128),
    }
