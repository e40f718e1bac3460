"""What a capacity costs, and the short answer that names it, from trials that are made up."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from conf.schema.load import GpuConfig
from conf.schema.report import ReportConfig
from evaluate.report.contents import make_report
from evaluate.report.decide.capacity import capacities
from evaluate.report.decide.choose_capacity import capacity_text
from evaluate.report.decide.comparison import comparison_groups
from evaluate.report.machine.answering import print_answer
from evaluate.report.machine.build import report_file
from evaluate.results.row_values import SpeedValues
from evaluate.results.rows import TrialRow
from tests.evaluate.report.made import Cell, accuracy_row, runs, write
from tests.evaluate.report.made_searches import (
    COUNT,
    OUTPUTS,
    PRICES,
    searched,
    table_of,
)


def test_money_and_joules_for_a_million_tokens() -> None:
    cell = table_of(searched("original", 10.0)).cells[0]
    assert cell.cost is not None
    # 3.6 an hour, and 5000 J of each trial at 0.36 a kWh for all of its tokens.
    joules = 5000 / (COUNT * OUTPUTS)
    money = 0.001 / (cell.rate * OUTPUTS) + 1e-7 * joules
    assert cell.cost.joules_per_million_output == pytest.approx(joules * 1e6)
    assert cell.cost.joules_per_million_input == pytest.approx(joules / 2 * 1e6)
    assert cell.cost.per_million_output == pytest.approx(money * 1e6)
    assert cell.cost.per_million_input == pytest.approx(money / 2 * 1e6)
    two = table_of(searched("original", 10.0, gpus=2)).cells[0]
    assert two.cost is not None
    assert two.cost.per_million_output == pytest.approx(2 * money * 1e6)


def forget_energy(row: TrialRow) -> None:
    known = row.values.numbers()
    known.pop("energy_j", None)
    row.values = SpeedValues.model_validate(known)


def test_energy_that_was_not_measured_makes_nothing_cheaper(tmp_path: Path) -> None:
    rows = [*searched("original", 10.0), *searched("fp8", 19.0)]
    for row in rows:
        if row.checkpoint == "fp8":
            forget_energy(row)
    fp8, original = table_of(rows).cells
    assert fp8.cost is None
    assert original.cost is not None
    for row in rows:
        forget_energy(row)
    for cell in table_of(rows).cells:
        assert cell.cost is not None
        assert cell.cost.per_million_output == pytest.approx(1e3 / (cell.rate * OUTPUTS))
    results = [str(write(tmp_path / "r.jsonl", rows))]
    notes = make_report(ReportConfig(results=results)).notes
    assert not any("energy" in note for note in notes)
    notes = make_report(ReportConfig(results=results, gpu=PRICES)).notes
    (said,) = [note for note in notes if "no energy was measured" in note]
    assert "gpu.energy_price_per_kwh is not counted" in said


def test_without_a_price_there_are_joules_alone() -> None:
    (group,) = comparison_groups(searched("original", 10.0))
    (table,) = capacities(group, GpuConfig())
    (cell,) = table.cells
    assert cell.cost is not None
    assert cell.cost.per_million_output is None
    text = capacity_text(cell, None, None)
    costs = "62,500 J per million input tokens; 125,000 J per million output tokens"
    assert text.split("; ", 1)[1] == f"{costs}; its accuracy was not measured"


def test_without_energy_the_recommendation_has_money_alone() -> None:
    rows = searched("original", 10.0)
    for row in rows:
        forget_energy(row)
    (cell,) = table_of(rows).cells
    assert cell.cost is not None
    text = capacity_text(cell, None, None)
    assert f"; {cell.cost.per_million_output:.3g} EUR per million output tokens; " in text
    (group,) = comparison_groups(rows)
    (cell,) = capacities(group, GpuConfig())[0].cells
    assert "per million" not in capacity_text(cell, None, None)


def test_the_short_answer_has_the_capacities(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = Cell("original", [1.0, 1.01, 0.99], engine="vllm_server", versions={"vllm": "0.25.1"})
    path = write(tmp_path / "r.jsonl", [*runs(cell), *searched("original", 10.0)])
    print_answer(ReportConfig(results=[str(path)], answer="text"))
    said = capsys.readouterr().out
    assert "  for:     capacity\n  serve:   original\n  why:     holds " in said
    assert "; 125,000 J per million output tokens" in said
    print_answer(ReportConfig(results=[str(path)], answer="json"))
    (setup,) = json.loads(capsys.readouterr().out)["setups"]
    (answer,) = setup["capacity_answers"]
    assert (answer["scenario"], answer["serve"]) == ("capacity", "original")
    alone = write(tmp_path / "alone.jsonl", searched("original", 10.0))
    print_answer(ReportConfig(results=[str(alone)], answer="text"))
    assert capsys.readouterr().out.count("serve:") == 1


def test_the_short_answer_has_the_costs_of_what_it_serves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judged = accuracy_row("fp8", 0.999, "no loss seen")
    searches = [*searched("original", 10.0), *searched("fp8", 19.0, 19.4), judged]
    path = write(tmp_path / "r.jsonl", searches)
    config = ReportConfig(results=[str(path)], answer="json", gpu=PRICES)
    print_answer(config)
    (setup,) = json.loads(capsys.readouterr().out)["setups"]
    assert setup["answer"]["serve"] == "fp8"
    costs = setup["answer"]["costs"]
    assert costs == setup["capacity_answers"][0]["costs"]
    (reported,) = report_file(make_report(config)).setups
    fp8 = next(one for one in reported.capacities if one.checkpoint == "fp8")
    assert fp8.costs is not None
    assert costs == asdict(fp8.costs)
    assert costs["joules_per_million_input_tokens"] == pytest.approx(62_500)
    assert costs["joules_per_million_output_tokens"] == pytest.approx(125_000)
    money = (costs["money_per_million_input_tokens"], costs["money_per_million_output_tokens"])
    assert money[1] == pytest.approx(2 * money[0])
    assert costs["currency"] == "EUR"


def test_an_answer_without_a_recommendation_has_no_costs(tmp_path: Path) -> None:
    rows = [*searched("original", 0.0), *searched("fp8", 0.0)]
    report = make_report(ReportConfig(results=[str(write(tmp_path / "r.jsonl", rows))], gpu=PRICES))
    (setup,) = report_file(report).setups
    assert (setup.answer.serve, setup.answer.costs) == (None, None)
