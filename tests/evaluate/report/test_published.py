"""Figures that others published: all there, as they were given, and under our names."""

import csv
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
import yaml

from conf import sources as files
from conf.hardware import CPU
from evaluate.report.decide.comparison import ComparisonGroup
from evaluate.report.published import figures as published
from evaluate.report.published.figures import FOLDER, NOT_STATED
from evaluate.report.show.published_records import (
    NOT_THE_SAME,
    comparability,
    context_model,
    published_contexts,
    sweep_records,
)
from evaluate.results.significance import compare, sample
from tests.evaluate.report.made import Cell, ranked, runs

SCENARIOS = {
    name: workload
    for path in (files.CONF / "scenario").glob("*.yaml")
    for name, workload in yaml.safe_load(path.read_text()).items()
    if isinstance(workload, dict)
}
RUNS = {(run.recipe, run.scenario, run.run): run for run in published.sweep_runs()}
CONTEXTS = published.context_figures()
MAY_BE_EMPTY = {"memory_gb", "note"}


def test_seven_times_seven_cells_of_three_runs() -> None:
    cells = Counter((recipe, scenario) for recipe, scenario, _ in RUNS)
    assert len(published.sweep_runs()) == len(RUNS) == 147
    assert len({recipe for recipe, _ in cells}) == len({scenario for _, scenario in cells}) == 7
    assert len(cells) == 49
    assert set(cells.values()) == {3}
    assert {number for *_, number in RUNS} == {1, 2, 3}


def test_recipes_and_scenarios_are_ours() -> None:
    known = {"original", *files.choices("recipe", files.folders_of([]))}
    standard = yaml.safe_load((files.CONF / "scenario" / "standard.yaml").read_text())["defaults"]
    assert {recipe for recipe, *_ in RUNS} <= known
    assert {scenario for _, scenario, _ in RUNS} == set(standard)


@pytest.mark.parametrize(
    ("cell", "figures"),
    [
        (("original", "interactive", 1), (0.51, 138.03, 377.82)),
        (("original", "interactive", 3), (0.50, 137.33, 380.44)),
        (("w8a16_smooth_awq", "decode_bound", 2), (2.78, 186.48, 276.00)),
        (("w8a8_smooth_ptq", "prefill_bound", 2), (0.27, 178.05, 7614.76)),
        (("w8a16_sparse_awq", "long_context", 3), (1.49, 160.24, 11029.73)),
        (("w8a8_sparse_smooth_gptq", "medium_batch", 3), (0.79, 1451.96, 3882.83)),
        (("w8a8_sparse_smooth_gptq", "base", 2), (0.46, 2898.23, 20103.63)),
        (("w8a8_sparse_smooth_gptq", "high_concurrency", 3), (1.53, 7511.33, 16061.41)),
    ],
)
def test_a_run_has_the_figures_of_its_source(
    cell: tuple[str, str, int], figures: tuple[float, float, float]
) -> None:
    run = RUNS[cell]
    assert (run.latency_s, run.output_tokens_per_s, run.overall_tokens_per_s) == figures


def test_the_run_that_stands_out_is_kept() -> None:
    """Their mean once put the recipe last, though the latencies are the same."""
    runs = [RUNS["w8a16_sparse_awq", "base", number] for number in (1, 2, 3)]
    assert [run.output_tokens_per_s for run in runs] == [1526.74, 4153.26, 3906.77]
    assert [run.latency_s for run in runs] == [0.75, 0.75, 0.75]


def test_latency_and_overall_throughput_say_the_same() -> None:
    for run in RUNS.values():
        workload = SCENARIOS[run.scenario]
        tokens = workload["batch"] * (workload["input_tokens"] + workload["output_tokens"])
        assert tokens / run.overall_tokens_per_s == pytest.approx(run.latency_s, abs=0.005001)


def test_speedups_are_ratios_of_latencies() -> None:
    speedups = published.sweep_speedups()
    assert len(speedups) == 42
    for (recipe, scenario), found in speedups.items():
        sides = [[RUNS[n, scenario, i].latency_s for i in (1, 2, 3)] for n in (recipe, "original")]
        rounded = compare(*map(sample, sides))
        assert rounded is not None
        assert found.ratio == pytest.approx(rounded.ratio, rel=0.02)
        assert found.low < found.ratio < found.high
    assert speedups["w8a8_smooth_gptq", "base"].ratio == pytest.approx(1.33, abs=0.005)
    slower = speedups["w8a16_awq", "high_concurrency"]
    assert slower.ratio == pytest.approx(0.779, abs=0.0005)
    assert slower.differs
    assert not speedups["w8a16_awq", "prefill_bound"].differs


def test_engines() -> None:
    figures = published.engine_figures()
    assert [(row.engine, row.kernel, row.ttft_ms, row.tpot_ms) for row in figures] == [
        ("vllm", "awq", 51.78, 50.12),
        ("vllm", "awq_marlin", 7.51, 5.83),
        ("transformers", NOT_STATED, 95.41, 62.05),
    ]
    for row in figures:
        source = published.sources()[row.source]
        assert row.versions == source.versions[row.engine]
        assert (row.model, row.device) == (source.model, source.hardware)


def test_operators_in_milliseconds() -> None:
    found = {row.name: row for row in published.operator_figures()}
    assert len(found) == 10
    product = found["WQLinearMMFunction"]
    assert (product.self_cpu_ms, product.self_cuda_ms, product.calls) == (2782, 101.457, 252)
    assert (found["awq_gemm_kernel"].self_cpu_ms, found["aten::mul"].calls) == (0, 472)
    cut = found["at::native::elementwise_kernel<128, 4, at::nati..."]
    assert (cut.self_cuda_ms, cut.calls) == (1.797, 289)


def test_every_table_of_contexts_is_whole() -> None:
    assert Counter((row.parameters, row.engine) for row in CONTEXTS) == {
        ("0.5B", "transformers"): 16,
        ("0.5B", "vllm"): 16,
        ("1.5B", "transformers"): 16,
        ("1.5B", "vllm"): 16,
        ("7B", "transformers"): 16,
        ("7B", "vllm"): 24,
        ("57B-A14B", "transformers"): 8,
        ("57B-A14B", "vllm"): 4,
        ("72B", "transformers"): 16,
        ("72B", "vllm"): 27,
    }
    places = {(r.model, r.engine, r.input_tokens, r.quantization, r.gpus) for r in CONTEXTS}
    assert len(places) == len(CONTEXTS) == 159


@pytest.mark.parametrize(
    ("place", "figures"),
    [
        (("0.5B", "transformers", 1, "bf16", 1), (49.94, 1.17)),
        (("0.5B", "vllm", 30720, "awq", 1), (92.23, None)),
        (("1.5B", "transformers", 30720, "gptq_int4", 1), (31.30, 28.54)),
        (("1.5B", "vllm", 30720, "gptq_int8", 1), (86.42, None)),
        (("7B", "transformers", 14336, "awq", 1), (27.61, 18.72)),
        (("7B", "vllm", 129024, "gptq_int4", 1), (29.39, None)),
        (("57B-A14B", "transformers", 30720, "bf16", 2), (4.12, 163.77)),
        (("57B-A14B", "vllm", 14336, "bf16", 2), (21.25, None)),
        (("72B", "transformers", 14336, "bf16", 3), (4.12, 169.93)),
        (("72B", "vllm", 129024, "gptq_int8", 4), (12.94, None)),
    ],
)
def test_a_context_has_the_figures_of_its_source(
    place: tuple[str, str, int, str, int], figures: tuple[float, float | None]
) -> None:
    (row,) = (
        row
        for row in CONTEXTS
        if place == (row.parameters, row.engine, row.input_tokens, row.quantization, row.gpus)
    )
    assert (row.tokens_per_s, row.memory_gb) == figures


def test_contexts_under_our_names() -> None:
    models = {
        yaml.safe_load(path.read_text()).get("id", "").split("/")[-1]
        for path in (files.CONF / "model").glob("*.yaml")
    }
    assert {row.model for row in CONTEXTS} <= models
    assert {f"context_{row.input_tokens}" for row in CONTEXTS} <= set(SCENARIOS)
    assert {row.quantization for row in CONTEXTS} == {"bf16", "gptq_int8", "gptq_int4", "awq"}


def test_memory_is_given_for_transformers_alone() -> None:
    assert {(row.engine, row.memory_gb is None) for row in CONTEXTS} == {
        ("transformers", False),
        ("vllm", True),
    }


def test_other_settings_are_noted() -> None:
    noted = [row for row in CONTEXTS if row.note]
    assert [(row.input_tokens, row.quantization, row.gpus, row.tokens_per_s) for row in noted] == [
        (1, "bf16", 2, 17.68),
        (1, "gptq_int4", 1, 29.60),
        (6144, "gptq_int4", 1, 25.16),
    ]
    assert all("enforce_eager=True" in row.note for row in noted)


def test_throughput_counts_input_and_output() -> None:
    figures = published.throughput_figures()
    assert [(row.model, row.prompts, row.tokens_per_s) for row in figures] == [
        ("Qwen1.5-32B-Chat", 100, 7343.56),
        ("Qwen2-57B-A14B-Instruct", 100, 5291.15),
        ("Qwen1.5-32B-Chat", 1000, 8791.35),
        ("Qwen2-57B-A14B-Instruct", 1000, 5698.37),
    ]
    for row in figures:
        workload = SCENARIOS[f"throughput_{row.prompts}"]
        tokens = workload["input_tokens"] + workload["output_tokens"]
        assert row.tokens_per_s / row.requests_per_s == pytest.approx(tokens, rel=1e-3)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.csv")), ids=lambda path: path.stem)
def test_no_field_is_empty_that_must_not_be(path) -> None:
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            empty = {name for name, value in line.items() if not value}
            assert empty <= MAY_BE_EMPTY, line
            assert line["source"] in published.sources()


def test_sources_name_their_hardware_or_say_that_it_is_not_stated() -> None:
    found = published.sources()
    assert {name: source.hardware for name, source in found.items()} == {
        "recipe_sweep": NOT_STATED,
        "vptq_early": NOT_STATED,
        "vptq_codebooks": NOT_STATED,
        "engine_comparison": "A100-SXM4-80GB",
        "operator_profile": "T4 (Colab)",
        "qwen2_context": "NVIDIA A100 80GB",
        "qwen2_throughput": "NVIDIA A100 80GB",
    }
    for source in found.values():
        assert source.title
        assert source.model
        for facts in (source.versions, source.settings):
            assert facts
            assert all(isinstance(value, str) and value for value in facts.values())


def test_reading_them_imports_nothing_heavy() -> None:
    script = (
        "import sys; from evaluate.report.published import figures\n"
        "figures.sweep_speedups(); figures.sources()\n"
        "print(sorted({'torch', 'transformers', 'vllm', 'numpy', 'pandas'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_loads_of_the_sweep_are_those_of_its_runs() -> None:
    loads = published.sweep_loads()
    assert set(loads) == {run.scenario for run in RUNS.values()}
    for run in RUNS.values():
        load = loads[run.scenario]
        tokens = load.batch * (load.input_tokens + load.output_tokens)
        assert tokens / run.overall_tokens_per_s == pytest.approx(run.latency_s, abs=0.005001)


def groups(**changed: Any) -> list[ComparisonGroup]:
    """A recipe beside the original in a published scenario, with the load or the device changed."""
    names = ("original", "w8a8_smooth_gptq")
    return ranked(runs(*(Cell(name, [1.0, 1.01, 1.0], **changed) for name in names)))


@pytest.mark.parametrize("changed", [{"inputs": 32}, {"outputs": 8}, {"batch": 2}, {"device": CPU}])
def test_published_speed_ups_stand_beside_the_same_load_on_a_gpu_alone(
    changed: dict[str, Any],
) -> None:
    (group,) = groups()
    assert [record.source for record in sweep_records(group)] == ["here", "published"]
    (other,) = groups(**changed)
    assert sweep_records(other) == []


def test_of_several_lengths_only_the_published_one_is_compared() -> None:
    names = ("original", "w8a8_smooth_gptq")
    cells = [Cell(name, [1.0, 1.01, 1.0], inputs=n) for name in names for n in (32, 128)]
    (group,) = ranked(runs(*cells))
    scenarios = {record.scenario for record in sweep_records(group)}
    assert len(scenarios) == 1
    assert "128" in scenarios.pop()


@pytest.mark.parametrize(
    ("model", "device", "is_same"),
    [
        ("qwen2-7b", "NVIDIA A100-SXM4-80GB", True),
        ("qwen2-7b", "NVIDIA H200", False),
        ("qwen2-0.5b", "NVIDIA A100-SXM4-80GB", True),
        ("qwen2.5-coder-0.5b", "NVIDIA A100-SXM4-80GB", False),
        ("tiny", "NVIDIA A100-SXM4-80GB", False),
    ],
)
def test_published_contexts_are_of_the_same_model_or_say_that_they_are_not(
    model: str, device: str, is_same: bool
) -> None:
    own = groups(model=model, device=device)
    name = context_model(own)
    assert name.lower().startswith(model) == (model.startswith("qwen2-"))
    assert published_contexts(name)
    note = comparability(name, "NVIDIA A100 80GB", own)
    assert note.startswith(f"Model: {name}; hardware: NVIDIA A100 80GB.")
    assert (NOT_THE_SAME not in note) == is_same


def test_what_is_not_stated_is_not_the_same() -> None:
    assert NOT_THE_SAME in comparability(NOT_STATED, NOT_STATED, groups())
