"""The benchmark of kernels: its grid, samples, rows and tables. Times need a GPU."""

import csv
import itertools
from pathlib import Path

import pytest
import torch

from conf.errors import QuantlineError
from conf.schema.kernel_grid import FORMATS
from evaluate.kernels import layers
from evaluate.kernels.benchmark import key_of, measure_grid
from evaluate.kernels.cases import KernelCase, cases
from evaluate.kernels.layers import activations, right_result, vector_weight
from evaluate.kernels.linear_weights import linear_products, linear_weight
from evaluate.kernels.measuring import Pair, values_of
from evaluate.kernels.sampling import FEWEST, MOST, sampled
from evaluate.kernels.tables import lines, summary, write_tables
from evaluate.report.published.figures import kernel_figures, sources
from evaluate.results.cells import cells
from evaluate.results.results_file import append, read, row_of
from evaluate.results.rows import KernelRow, line_content
from serve.kernels.plans.proof import dense
from serve.kernels.products.product import Inputs
from serve.kernels.products.vptq_unpack import VptqUnpack
from tests.conftest import Run
from tests.evaluate.kernels import made


def test_the_grid_is_that_of_the_published_tables() -> None:
    found = cases(made.grid())
    published = [f for f in kernel_figures() if f.main_centroids]
    assert len(found) == len(published) == 120
    assert {
        (c.in_features, c.out_features, c.main_centroids, c.residual_centroids) for c in found
    } == {
        (f.in_features, f.out_features, f.main_centroids, f.residual_centroids) for f in published
    }
    assert len(cases(made.grid(tokens=[1, 8], in_features=[4096]))) == 2 * 6 * 4
    short = cases(made.grid(vectors=[4], in_features=[4096]))
    assert {(c.vector, c.main_centroids, c.residual_centroids) for c in short} == {
        *((4, 4096, 0), (4, 256, 0)),
    }
    with pytest.raises(QuantlineError, match="no such shape"):
        cases(made.grid(out_features=[7]))


def test_published_figures_have_their_sources() -> None:
    figures = kernel_figures()
    assert len(figures) == 150
    assert {figure.source for figure in figures} <= sources().keys()
    largest = figures[29]
    assert (largest.in_features, largest.out_features) == (16384, 53248)
    assert largest.ratio == pytest.approx(2.22, abs=0.005)


def test_samples_end_where_the_interval_is_narrow_or_the_time_is_up() -> None:
    steady = sampled(lambda: 5.0)
    assert (steady.repeats, steady.median_us) == (FEWEST, 5.0)
    noisy = itertools.cycle([1.0, 2.0, 3.0])
    assert sampled(lambda: next(noisy), now=lambda: 0.0).repeats == MOST
    clock = itertools.count()
    short = sampled(lambda: next(noisy), seconds=10.5, now=lambda: float(next(clock)))
    assert FEWEST < short.repeats < MOST
    assert short.low_us < short.median_us < short.high_us


def test_made_up_layers_have_the_right_result() -> None:
    case = cases(made.grid(in_features=[1024], out_features=[1024], tokens=[3]))[0]
    device = torch.device("cpu")
    weight, x = vector_weight(case, device), activations(case, device)
    product = VptqUnpack()
    result = product.multiply(Inputs(x), product.prepare(weight), (("ROWS", 512),))
    right = right_result(x, weight)
    assert float((result.double() - right).norm() / right.norm()) < 0.005
    shares = torch.bincount(weight.codes.flatten(), minlength=case.main_centroids)
    assert shares.min() > 0  # random indices, all entries used


def test_the_limit_counts_weights_and_activations() -> None:
    case = cases(made.grid())[0]
    pair = Pair(made.times(4), made.times(2))
    values = values_of(case, pair, pair, 10**6, 1e12)
    assert values.limit_us == pytest.approx((10**6 + 2 * 2048) / 1e6)
    assert values.limit_share == pytest.approx(values.limit_us / 4)
    assert values_of(case, pair, pair, 10**6, None).limit_us is None


def test_rows_are_read_back_and_other_commands_leave_them_out(tmp_path: Path) -> None:
    row = made.all_rows(in_features=[1024])[0]
    assert row_of(line_content(row)) == row
    path = tmp_path / "results.jsonl"
    append(path, row)
    (found,), faults = read(path)
    assert isinstance(found, KernelRow)
    assert faults == []
    assert found.values.ratio == pytest.approx(0.5)
    assert cells([found]) == []
    damaged = line_content(row)
    damaged["values"]["cold"]["median_us"] = -1
    with pytest.raises(ValueError, match="median_us"):
        row_of(damaged)


def test_the_tables_have_every_published_line_beside_ours(tmp_path: Path) -> None:
    rows = made.all_rows()
    shown = write_tables(rows, tmp_path)
    assert len(shown) == 150
    with (tmp_path / "kernels.csv").open() as file:
        read_back = list(csv.DictReader(file))
    assert len(read_back) == 150
    early = [line for line in read_back if line["published as"] == "vptq_early"]
    assert len(early) == 30
    assert {line["main_centroids"] for line in early} == {"8192"}
    first = next(line for line in read_back if line["published as"] == "vptq_codebooks")
    assert (first["kernel (ms)"], first["ratio"], first["published ratio"]) == (
        *("0.0050", "0.50", "1.02"),
    )
    assert "150 of 150 lines" in (tmp_path / "kernels.md").read_text()


def test_wrong_results_are_in_no_table() -> None:
    case = cases(made.grid())[0]
    assert lines([made.row_of(case, invalid=("off by 0.5",))]) == []
    assert summary([]) == "nothing was measured"


def test_what_the_file_holds_is_not_measured_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"in_features": [1024], "out_features": [1024]}
    results, out = str(tmp_path / "results.jsonl"), str(tmp_path / "out")
    for row in made.all_rows(**options)[:-1]:
        append(Path(results), row)
    with pytest.raises(QuantlineError, match=r"1 of 4 products are not in .* no NVIDIA GPU"):
        measure_grid(made.grid(results=results, out=out, **options))
    append(Path(results), made.all_rows(**options)[-1])
    measure_grid(made.grid(results=results, out=out, **options))
    assert "5 of 5 lines" in capsys.readouterr().err  # one of them beside both tables
    with pytest.raises(QuantlineError, match="4 of 4 products"):
        measure_grid(made.grid(results=results, out=out, force=True, **options))


def test_a_key_is_that_of_a_case_a_gpu_and_versions() -> None:
    row = made.all_rows()[0]
    one, other = cases(made.grid())[:2]
    assert key_of(one, row.environment) != key_of(other, row.environment)
    elsewhere = row.environment.with_fields(device="NVIDIA H200")
    assert key_of(one, elsewhere) != key_of(one, row.environment)
    assert key_of(one, row.environment.with_fields(commit="x")) == row.key


def test_without_a_gpu_the_command_says_so(command_here: Run, tmp_path: Path) -> None:
    result = command_here("evaluate.kernels", f"results={tmp_path}/r.jsonl", f"out={tmp_path}/o")
    assert result.returncode == 3
    assert "no NVIDIA GPU here" in result.stderr


def test_the_linear_grid_has_the_merged_layers_of_a_model() -> None:
    found = cases(made.grid(grid="linear", schemes=["int8"], tokens=[1]))
    assert {(case.layer, case.out_features, case.in_features) for case in found} == {
        *(("qkv_proj", 6144, 4096), ("o_proj", 4096, 4096)),
        *(("gate_up_proj", 24576, 4096), ("down_proj", 4096, 12288)),
    }
    assert len(cases(made.grid(grid="linear"))) == 5 * 4 * 4


@pytest.mark.parametrize("kind", FORMATS)
def test_linear_weights_have_products_and_the_right_result(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = KernelCase("linear", kind, 2, 256, 64)
    device = torch.device("cpu")
    weight = linear_weight(case, device)
    assert (weight.rows, weight.columns) == (64, 256)
    if kind.startswith("sparse"):
        kept = weight.codes.float().view(64, -1, 4) != 0
        assert kept.sum(-1).max() == 2
    assert linear_products(kind)
    monkeypatch.setattr(layers, "linear_products", lambda _: [])  # importing vLLM takes long
    layer = layers.linear_layer(case, device)
    assert layer.right.shape == (2, 64)
    assert layer.right.isfinite().all()
    wide = layer.inputs.plain.double() @ dense(weight, 0, 64).t()
    assert torch.allclose(layer.right, wide)


def test_options_that_contradict_each_other() -> None:
    with pytest.raises(ValueError, match="at most 16"):
        made.grid(tokens=[17])
    with pytest.raises(ValueError, match="works only with grid=vptq"):
        made.grid(grid="linear", vectors=[4])
    with pytest.raises(ValueError, match="vectors of 4 and 8"):
        made.grid(vectors=[6])
    with pytest.raises(ValueError, match="works only with grid=linear"):
        made.grid(schemes=["int8"])
    with pytest.raises(ValueError, match="leave it out"):
        made.grid(tokens=[])


def test_a_table_of_linear_products_leaves_out_empty_columns(tmp_path: Path) -> None:
    write_tables(made.all_rows(grid="linear", schemes=["fp8"]), tmp_path)
    text = (tmp_path / "kernels.md").read_text()
    assert "gate_up_proj" in text
    assert "centroids" not in text
    assert "published" not in text


@pytest.mark.gpu
def test_a_small_grid_on_a_gpu(tmp_path: Path) -> None:
    options = {"in_features": [1024], "out_features": [4096], "tokens": [1, 16]}
    config = made.grid(results=str(tmp_path / "r.jsonl"), out=str(tmp_path / "o"), **options)
    measure_grid(config)
    rows, faults = read(tmp_path / "r.jsonl")
    assert len(rows) == 8
    assert faults == []
    assert all(not row.invalid for row in rows)
