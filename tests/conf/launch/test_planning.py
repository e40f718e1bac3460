"""The tasks of a sweep: parts, order, names."""

from dataclasses import replace
from pathlib import Path

import pytest

from conf.launch.planning import PlannedTask, Planner
from evaluate.sweep.hooks import EvaluateSweep
from quantize.sweep import QuantizeSweep
from tests.conftest import evaluate_config, quantize_config

RANDOM = ["model=tiny", "weights=random", "engine=transformers"]


def plan(*jobs: list[str]) -> list[PlannedTask]:
    planner = Planner("evaluate.command", EvaluateSweep(), lambda text: evaluate_config(*text))
    return planner.plan(list(jobs))


def recipes(tasks: list[PlannedTask]) -> list[list[str]]:
    return [planned.config.recipes for planned in tasks]


def test_the_original_is_measured_once_and_before_the_others() -> None:
    first, *others = plan([*RANDOM, "recipes=[fp8_dynamic]"], [*RANDOM, "recipes=[fp8_block]"])
    assert recipes([first, *others]) == [["original"], ["fp8_dynamic"], ["fp8_block"]]
    assert first.after is None
    assert [planned.after for planned in others] == [first.task.name] * 2
    assert [planned.jobs for planned in (first, *others)] == [{0, 1}, {0}, {1}]


def test_a_list_of_recipes_is_spread_as_jobs_of_their_own_are() -> None:
    together = plan([*RANDOM, "recipes=[fp8_dynamic,fp8_block]"])
    apart = plan([*RANDOM, "recipes=[fp8_dynamic]"], [*RANDOM, "recipes=[fp8_block]"])
    assert [p.task.name for p in together] == [p.task.name for p in apart]


def test_a_single_recipe_measures_the_original_itself() -> None:
    assert recipes(plan([*RANDOM, "recipes=[fp8_dynamic]"])) == [["fp8_dynamic"]]
    assert recipes(plan([*RANDOM, "original=false", "recipes=[fp8_dynamic,fp8_block]"])) == [
        ["fp8_dynamic"],
        ["fp8_block"],
    ]


def test_originals_of_different_scenarios_are_different_tasks() -> None:
    jobs = [
        [*RANDOM, f"scenario={name}", "recipes=[fp8_dynamic,fp8_block]"]
        for name in ("base", "interactive")
    ]
    tasks = plan(*jobs)
    assert len(tasks) == 6
    assert len({planned.after for planned in tasks if planned.after}) == 2


def test_checkpoints_are_spread_with_their_names_quoted(tmp_path: Path) -> None:
    folder = str(tmp_path / "it's, mine")
    tasks = plan(["model=tiny", f'checkpoints=["{folder}",other]'])
    assert [planned.config.checkpoints for planned in tasks] == [[], [folder], ["other"]]


def test_a_name_does_not_depend_on_launcher_and_results() -> None:
    job = [*RANDOM, "recipes=[fp8_dynamic]"]
    (one,) = plan([*job, "launcher=local", "results=a.jsonl"])
    (other,) = plan([*job, "launcher=slurm", "launcher.partition=gpu", "results=b.jsonl"])
    (third,) = plan([*job, "repeats=3"])
    assert one.task.name == other.task.name != third.task.name
    assert "launcher" not in " ".join(other.task.overrides)
    assert Path(other.task.sweep_folder).name == "b.jsonl.d"


def test_two_jobs_for_one_checkpoint_are_refused() -> None:
    config = quantize_config("model=tiny", "recipe=fp8_dynamic")
    other = replace(config, batch_size=4)
    with pytest.raises(Exception, match="two jobs of the sweep would write it"):
        QuantizeSweep().check([config, other])
