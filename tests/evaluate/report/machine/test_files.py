"""report.json and the tables: by the declared schema, with what the page says."""

import csv
import json
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from conf.schema.load import GpuConfig
from conf.schema.report import ReportConfig, TargetsConfig
from evaluate.report.contents import Report, make_report
from evaluate.report.machine.answering import print_answer
from evaluate.report.machine.files import SCHEMA, json_schema, write_files
from evaluate.results.rows import Row
from tests.conftest import Run
from tests.evaluate.report.made import Cell, accuracy_row, runs, write
from tests.evaluate.report.made_searches import searched

STEADY = [1.0, 1.001, 0.999]
LOADS = ("interactive", "high_concurrency")


def timed(checkpoint: str, seconds: float, *measures: str, **more: Any) -> list[Cell]:
    return [
        Cell(checkpoint, [seconds * t for t in STEADY], measure, **more) for measure in measures
    ]


ROWS: list[Row] = [
    *runs(*timed("original", 1.0, *LOADS), *timed("w8a8", 0.8, *LOADS)),
    *runs(*timed("w4a16", 0.6, "interactive")),
    accuracy_row("w8a8", 0.999, "no loss seen"),
]


def made(folder: Path, rows: list[Row], **options: Any) -> tuple[Report, dict[str, Any]]:
    results = write(folder / "results.jsonl", rows)
    report = make_report(ReportConfig(results=[str(results)], **options))
    write_files(report, folder)
    content: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report, content


def test_the_stored_schema_is_that_of_the_declared_types() -> None:
    assert json.loads(SCHEMA.read_text()) == json_schema()


@pytest.mark.parametrize("rows", [ROWS, [*searched("original", 4), *searched("w8a8", 6)]])
def test_report_json_follows_the_schema(tmp_path: Path, rows: list[Row]) -> None:
    _, content = made(tmp_path, rows, gpu=GpuConfig(price_per_hour=3.0))
    jsonschema.validate(content, json.loads(SCHEMA.read_text()))
    content["setups"][0]["answer"]["serve"] = 3
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(content, json.loads(SCHEMA.read_text()))


def test_the_answer_has_its_reason_interval_ranks_accuracy_and_commands(tmp_path: Path) -> None:
    report, content = made(tmp_path, ROWS)
    (setup,) = content["setups"]
    answer = setup["answer"]
    assert answer["serve"] == "w8a8"
    assert answer["reason"] == report.answers[0].overall.why
    assert answer["speed_up"]["low"] < 1.25 < answer["speed_up"]["high"]
    assert answer["accuracy_judged"] is True
    (excluded,) = answer["excluded"]
    assert excluded["checkpoint"] == "w4a16"
    assert setup["serve_commands"] == [
        "python -m serve model=qwen3-8b recipe=w8a8 engine.kernels=vllm"
    ]
    interactive, _ = setup["scenarios"]
    assert interactive["share"] == 0.5
    ranks = {one["checkpoint"]: one["rank"] for one in interactive["ranks"]}
    assert ranks == {"w4a16": 1, "w8a8": 2, "original": 3}
    accuracy = {one["name"]: one["accuracy"] for one in setup["checkpoints"]}
    assert accuracy["w8a8"]["verdict"] == "no loss seen"
    assert accuracy["w8a8"]["recovery"] == {"value": 0.999, "low": 0.998, "high": 1.0}
    assert accuracy["w4a16"]["verdict"] == "not judged"


def test_costs_follow_the_price(tmp_path: Path) -> None:
    _, content = made(tmp_path, ROWS, gpu=GpuConfig(price_per_hour=3.6, currency="EUR"))
    costs = {
        one["name"]: one["mix_costs"] and one["mix_costs"]["money_per_million_output_tokens"]
        for one in content["setups"][0]["checkpoints"]
    }
    # 64 tokens in a second, or in 0.8 s, at a thousandth of a euro a second.
    assert costs["original"] == pytest.approx(0.001 / 64 * 1e6, rel=1e-3)
    assert costs["w8a8"] == pytest.approx(0.0008 / 64 * 1e6, rel=1e-3)
    assert costs["w4a16"] is None  # it did not run all of the mix
    (setup,) = content["setups"]
    assert setup["answer"]["serve"] == "w8a8"
    mix_costs = next(one["mix_costs"] for one in setup["checkpoints"] if one["name"] == "w8a8")
    assert setup["answer"]["costs"] == mix_costs
    cell = Cell("w8a8", STEADY)
    assert mix_costs["money_per_million_input_tokens"] == pytest.approx(
        0.0008 / cell.inputs * 1e6, rel=1e-3
    )
    for scenario in setup["scenarios"]:
        served = scenario["recommendation"]
        assert served["serve"] == "w8a8"
        ranks = {one["checkpoint"]: one["costs"] for one in scenario["ranks"]}
        assert served["costs"] == ranks["w8a8"]
        assert served["costs"]["money_per_million_input_tokens"] == pytest.approx(
            mix_costs["money_per_million_input_tokens"], rel=1e-3
        )


def test_the_capacity_has_its_cost(tmp_path: Path) -> None:
    rows = [*searched("original", 4, 4, 4), *searched("w8a8", 8, 8, 8)]
    _, content = made(tmp_path, rows, gpu=GpuConfig(price_per_hour=3.6))
    (setup,) = content["setups"]
    rates = {one["checkpoint"]: one for one in setup["capacities"]}
    assert rates["w8a8"]["requests_per_s"]["value"] > rates["original"]["requests_per_s"]["value"]
    cost = rates["w8a8"]["costs"]["money_per_million_output_tokens"]
    assert cost < rates["original"]["costs"]["money_per_million_output_tokens"]
    assert setup["capacity_answers"][0]["serve"] == "w8a8"


def test_what_is_missing_comes_with_a_command_that_composes(
    command_here: Run, tmp_path: Path
) -> None:
    rows = [
        *runs(*timed("original", 1.0, "batch_8"), *timed("w8a8_smooth_gptq", 0.8, "batch_8")),
        *runs(*timed("original", 1.0, "base", options={"linear_backend": "marlin"})),
    ]
    _, content = made(tmp_path, rows, mix={"batch_8": 1.0, "base": 1.0})
    (setup,) = content["setups"]
    missing = {one["what"]: shlex.split(one["command"]) for one in setup["missing"]}
    assert "the accuracy of w8a8_smooth_gptq" in missing
    assert "scenario=[base]" in missing["original, w8a8_smooth_gptq in base"]
    other = missing["original (linear_backend=marlin) in batch_8"]
    assert {"scenario=[batch_size]", "engine.linear_backend=marlin"} <= set(other)
    for command in missing.values():
        result = command_here(*command[2:], "--cfg", "job")
        assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(("weights", "commands"), [("trained", 1), ("random", 2)])
def test_published_checkpoints_that_lack_other_scenarios_have_one_command(
    tmp_path: Path, weights: str, commands: int
) -> None:
    """It measures all of them; recipes on random weights are named."""
    cells = timed("original", 1.0, "interactive", "base", weights=weights)
    cells += timed("w8a8_smooth_gptq", 0.8, "base", weights=weights)
    cells += timed("fp8_dynamic", 0.8, "interactive", weights=weights)
    _, content = made(tmp_path, runs(*cells), mix={"interactive": 1.0, "base": 1.0})
    missing = [one for one in content["setups"][0]["missing"] if " in " in one["what"]]
    assert len(missing) == commands
    lacking = "; ".join(one["what"] for one in missing)
    assert lacking == "fp8_dynamic in base; w8a8_smooth_gptq in interactive"
    for one in missing:
        named = [each for each in ("w8a8_smooth_gptq", "fp8_dynamic") if each in one["command"]]
        assert len(named) == (0 if commands == 1 else 1)
    if commands == 1:
        assert "'scenario=[interactive,base]'" in missing[0]["command"]


def test_checkpoints_that_were_named_by_path_are_named_again_with_the_original(
    tmp_path: Path,
) -> None:
    rows = runs(*timed("original", 1.0, "interactive"), *timed("a", 0.8, "interactive"))
    rows += runs(*timed("b", 0.8, "interactive", "base"))
    for row in rows:
        row.environment.command = "python -m evaluate checkpoints=[/x/a,/x/b]"
    _, content = made(tmp_path, rows, mix={"interactive": 1.0, "base": 1.0})
    (missing,) = [one for one in content["setups"][0]["missing"] if " in " in one["what"]]
    assert missing["what"] == "original, a in base"
    assert "checkpoints=[/x/a]" in missing["command"]


def test_the_answer_as_text_says_what_may_change_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = runs(*timed("original", 2.0, "interactive"), Cell("w8a8", [0.93, 1.0, 1.06]))
    path = write(tmp_path / "results.jsonl", rows)
    targets = TargetsConfig(ttft_ms=102)
    print_answer(ReportConfig(results=[str(path)], targets=targets, answer="text"))
    text = capsys.readouterr().out
    assert "  but:     more repeats or starts: it meets targets only within its noise" in text
    assert text.count("not judged") == 1  # said once, beside the checkpoint


def test_a_checkpoint_of_random_weights_is_quantized_before_it_is_served(tmp_path: Path) -> None:
    cells = timed("original", 1.0, *LOADS, weights="random")
    cells += timed("w8a8_smooth_gptq", 0.7, *LOADS, weights="random", options={"kernels": "auto"})
    _, content = made(tmp_path, [*runs(*cells)])
    assert content["setups"][0]["serve_commands"] == [
        "python -m quantize model=qwen3-8b recipe=w8a8_smooth_gptq",
        "python -m serve model=qwen3-8b recipe=w8a8_smooth_gptq engine.kernels=auto",
    ]


def test_tables_have_intervals_and_none_is_left_of_an_earlier_report(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "rates.csv").write_text("old")
    (tmp_path / "tables" / "mine.csv").write_text("mine")
    made(tmp_path, ROWS)
    assert not (tmp_path / "tables" / "rates.csv").exists()
    assert (tmp_path / "tables" / "mine.csv").read_text() == "mine"
    with (tmp_path / "tables" / "cells.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 5
    found = next(line for line in lines if line["candidate"] == "w8a8")
    assert found["setup"] == "qwen3-8b on NVIDIA H200, vllm 0.25.1"
    assert float(found["latency_s_low"]) < float(found["latency_s"])
    assert float(found["speedup_low"]) < 1.25 < float(found["speedup_high"])


@pytest.mark.parametrize("name", ["=1+1", "+a", "-a", "@SUM(A1)"])
def test_a_name_is_no_formula_in_a_table(name: str, tmp_path: Path) -> None:
    cells = [Cell("original", STEADY, model=name), Cell(name, STEADY, model=name)]
    made(tmp_path, [*runs(*cells), accuracy_row(name, 0.99, "no loss seen")])
    for table in (tmp_path / "tables").glob("*.csv"):
        with table.open(newline="") as file:
            values = [value for line in csv.reader(file) for value in line]
        assert not [value for value in values if value.startswith(name)], table
    assert f"'{name}" in values


def test_no_recommendation_is_said_with_its_reason(tmp_path: Path) -> None:
    _, content = made(tmp_path, ROWS, targets=TargetsConfig(tpot_ms=0.1))
    (setup,) = content["setups"]
    assert setup["answer"]["serve"] is None
    assert setup["serve_commands"] == []
    assert "no candidate meets the targets" in setup["answer"]["reason"]


def test_the_answer_alone_as_text_and_as_json(command_here: Run, tmp_path: Path) -> None:
    write(tmp_path / "results.jsonl", ROWS)
    text = command_here("evaluate.report", "--answer")
    assert text.returncode == 0, text.stderr
    lines = text.stdout.splitlines()
    assert lines[0] == "qwen3-8b on NVIDIA H200, vllm 0.25.1"
    assert lines[1] == "  serve:   w8a8"
    assert "  command: python -m serve model=qwen3-8b recipe=w8a8 engine.kernels=vllm" in lines
    found = command_here("evaluate.report", "--answer=json", "targets.tpot_ms=0.1")
    assert json.loads(found.stdout)["setups"][0]["answer"]["serve"] is None
    assert not (tmp_path / "report").exists()


def test_another_form_of_the_answer_is_refused(command_here: Run) -> None:
    found = command_here("evaluate.report", "--answer=xml")
    assert (found.returncode, found.stderr) == (
        2,
        "error: answer=xml: choose one of text, json.\n",
    )
