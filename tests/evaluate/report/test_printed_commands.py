"""Commands that are printed for users: pasted, they are accepted and name the same things."""

import shlex
from dataclasses import replace
from typing import Any

import pytest

from conf.compose import compose
from conf.schema.load import GpuConfig
from conf.schema.report import ReportConfig, TargetsConfig, report_command
from evaluate.command import COMMAND as EVALUATE
from evaluate.report.command import COMMAND as REPORT
from evaluate.report.decide.commands import (
    accuracy_command,
    candidate_options,
    evaluate_options,
    results_option,
    second_starts,
    serve_commands,
)
from evaluate.results.rows import SpeedRow
from quantize.command import COMMAND as QUANTIZE
from serve.command import COMMAND as SERVE
from tests.evaluate.report.made import Cell, ranked, runs

COMMANDS = {"serve": SERVE, "evaluate": EVALUATE, "quantize": QUANTIZE, "evaluate.report": REPORT}
OPTIONS: dict[str, Any] = {
    "kernels": ["one_token", "sparse"],
    "second_layout": False,
    "max_num_seqs": 64,
    "async_scheduling": False,
    "gpu_memory_utilization": 0.87654321,
    "linear_backend": "marlin",
    "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
    "compilation_config": {"custom_ops": ["all"], "pass_config": {"fuse_norm_quant": True}},
    "chat_template": "/a b/it's, {x}=${HOME}.jinja",
    "hf_overrides": None,
}
ODD_NAME = "it's, a=b [x] ${y}"


def pasted(command: str) -> Any:
    """The config of a command as a shell hands it over."""
    words = shlex.split(command)
    assert words[:2] == ["python", "-m"]
    return compose(COMMANDS[words[2]], words[3:])


def row(command: str = "", **fields: Any) -> SpeedRow:
    (made,) = runs(Cell("fp8_dynamic", [1.0], **fields))
    environment = made.environment.model_copy(update={"command": command})
    return made.model_copy(update={"environment": environment})


@pytest.mark.parametrize("weights", ["trained", "random"])
def test_serving_takes_all_engine_options(weights: str) -> None:
    *before, command = serve_commands(row(options=OPTIONS, weights=weights))
    assert [pasted(each).recipe.name for each in before] == ["fp8_dynamic"] * len(before)
    config = pasted(command)
    assert (config.model.name, config.recipe_name) == ("qwen3-8b", "fp8_dynamic")
    assert config.engine.kernels.families == ["one_token", "sparse"]
    assert config.engine.kernels.second_layout is False
    kernels = ("kernels", "second_layout")
    assert config.engine.options == {k: v for k, v in OPTIONS.items() if k not in kernels}


@pytest.mark.parametrize(("options", "families"), [({}, ["vllm"]), ({"kernels": "auto"}, ["auto"])])
def test_serving_takes_the_kernels_that_were_measured(
    options: dict[str, Any], families: list[str]
) -> None:
    assert pasted(serve_commands(row(options=options))[-1]).engine.kernels.families == families


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        (["model.path=/models/Mine"], ("mine", "/models/Mine", None)),
        (["'model.path=\"/my models/Mine\"'"], ("mine", "/my models/Mine", None)),
        (["model.id=org/Mine"], ("mine", None, "org/Mine")),
        (["model.path=/m/Other", "model.name=mine"], ("mine", "/m/Other", None)),
    ],
)
def test_a_model_of_the_users_own_is_named_as_it_was(
    typed: list[str], named: tuple[str, str | None, str | None]
) -> None:
    own = row(f"python -m evaluate {' '.join(typed)} repeats=3", model="mine")
    (group,) = ranked([own])
    for command in (*serve_commands(own), accuracy_command(group, "r.jsonl")):
        model = pasted(command).model
        assert (model.name, model.path, model.id) == named


def test_a_listed_model_keeps_what_was_changed_of_it() -> None:
    (command,) = serve_commands(row("python -m evaluate model=tiny model.seed=5", model="tiny"))
    assert (pasted(command).model.name, pasted(command).model.seed) == ("tiny", 5)


def test_a_checkpoint_in_another_folder_is_found_there() -> None:
    folder = "/my models/fp8_dynamic"
    elsewhere = row(f"python -m evaluate 'checkpoints=[\"{folder}\",other]'")
    (command,) = serve_commands(elsewhere)
    assert pasted(command).checkpoint == folder
    measured = " ".join(map(shlex.quote, candidate_options([elsewhere])))
    assert pasted(f"python -m evaluate {measured}").checkpoints == [folder]
    rooted = row("python -m evaluate checkpoint_root=/big/disk")
    (command,) = serve_commands(rooted)
    assert pasted(command).checkpoint_root == "/big/disk"


@pytest.mark.parametrize(
    "command", ["", "python -m 'evaluate", "python -m evaluate model.path=a,b"]
)
def test_a_command_that_says_nothing_leaves_the_name(command: str) -> None:
    (printed,) = serve_commands(row(command))
    assert printed == "python -m serve model=qwen3-8b recipe=fp8_dynamic engine.kernels=vllm"


def test_traffic_keeps_its_requests() -> None:
    typed = "python -m evaluate scenario=traffic traffic.path=/t.jsonl traffic.rate=8 repeats=2"
    with_traffic = row(typed)
    settings = with_traffic.settings.model_copy(update={"traffic": object()})
    options = candidate_options([with_traffic.model_copy(update={"settings": settings})])
    assert options == ["traffic.path=/t.jsonl", "traffic.rate=8", "engine.kernels=vllm"]
    assert candidate_options([with_traffic]) == ["engine.kernels=vllm"]


def test_measuring_again_measures_the_same() -> None:
    """A changed scenario, its repeats, and checkpoints in another folder."""
    given = "scenario.interactive.input_tokens=32 scenario.base.batch=2 repeats=2"
    command = (
        f"python -m evaluate model=tiny checkpoint_root=/big/disk scenario=interactive {given}"
    )
    rows = runs(
        Cell("original", [1.0, 1.001, 0.999, 1.002]),
        Cell("fp8_dynamic", [0.98, 0.981, 0.979, 0.982]),
    )
    for made in rows:
        made.environment = made.environment.with_fields(command=command)
    (group,) = ranked(rows)
    ((_, again),) = second_starts(group, "r.jsonl")
    config = pasted(again)
    assert config.scenario["interactive"].input_tokens == 32
    assert (config.repeats, config.checkpoint_root) == (2, "/big/disk")
    assert "base" not in again
    assert pasted(accuracy_command(group, "r.jsonl")).checkpoint_root == "/big/disk"


def test_no_start_is_said_to_decide_between_noisy_runs() -> None:
    noisy = runs(Cell("original", [1.0, 2.0]), Cell("fp8_dynamic", [2.5, 3.9]))
    (group,) = ranked(noisy)
    assert second_starts(group, "r.jsonl") == []


def test_measuring_again_names_files_with_odd_names() -> None:
    (group,) = ranked(runs(Cell("original", [1.0, 1.0]), Cell("fp8_dynamic", [1.0, 1.0])))
    config = pasted(accuracy_command(group, f"{ODD_NAME}.jsonl.gz"))
    assert config.results == f"{ODD_NAME}.jsonl"
    words = [*evaluate_options(group), results_option(f"{ODD_NAME}.jsonl")]
    again = pasted(f"python -m evaluate {' '.join(map(shlex.quote, words))}")
    assert (again.results, again.engine.kind) == (f"{ODD_NAME}.jsonl", "vllm")


def test_a_second_start_is_accepted() -> None:
    cells = [
        Cell("original", [1.0, 1.001, 0.999], options=OPTIONS),
        Cell("fp8_dynamic", [0.98, 0.979, 0.981], options=OPTIONS),
    ]
    for group in ranked(runs(*cells)):
        for _, command in second_starts(group, "r.jsonl"):
            assert pasted(command).starts == 2


def test_a_reports_own_command_writes_the_same_report() -> None:
    config = ReportConfig(
        results=[f"{ODD_NAME}.jsonl", "b.jsonl"],
        out=f"/tmp/{ODD_NAME}",
        targets=TargetsConfig(ttft_ms=123.456789, min_recovery=0.987654321, allow_unjudged=True),
        mix={"interactive": 1 / 3, "base": 2},
        max_spread=0.123456789,
        gpu=GpuConfig(price_per_hour=3.14159265, currency="a b"),
    )
    read = pasted(report_command(config))
    gpu = replace(config.gpu, name=read.gpu.name)
    assert read == replace(config, gpu=gpu)
