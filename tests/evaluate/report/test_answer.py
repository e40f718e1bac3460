"""What the report tells a server to serve, and with which options."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conf.errors import QuantlineError
from conf.schema.report import TargetsConfig
from evaluate.report.answer import recommend
from evaluate.report.programs import Recommended, ServeRequest
from tests.evaluate.report.made import H200, Cell, runs, write
from tests.evaluate.report.made_searches import searched

STEADY = [1.0, 1.001, 0.999]


def recommended(results: Path, **changes: Any) -> Recommended:
    request = ServeRequest(str(results), TargetsConfig(), {}, "qwen3-8b", H200, "")
    return recommend(replace(request, **changes))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    cells = []
    for batch in (1, 8, 64):
        name, size = f"batch_{batch}", {"batch": batch}
        slow = [t * (1 + batch / 64) for t in STEADY]
        cells.append(Cell("original", [2 * t for t in slow], name, **size))
        cells.append(Cell("w4a16", [1.5 * t for t in slow], name, **size))
        options = {"linear_backend": "marlin", "max_model_len": 512, "dtype": "auto"}
        cells.append(Cell("w4a16", slow, name, options=options, **size))
    return write(tmp_path / "results.jsonl", runs(*cells))


def test_the_kernel_that_won_is_handed_on_and_what_a_measurement_sets_is_not(results: Path) -> None:
    found = recommended(results)
    assert found.checkpoint == "w4a16"
    assert found.options == {"linear_backend": "marlin"}
    assert "results.jsonl" in found.reasons["linear_backend"]


def test_memory_sizes_of_engines_side_by_side_are_not_handed_on(tmp_path: Path) -> None:
    sizes = {"kv_cache_memory_bytes": 10**9, "gpu_memory_utilization": 0.01}
    cells = [Cell("original", [2.0, 2.001, 1.999], "base", options=sizes)]
    cells.append(Cell("w8", STEADY, "base", options=sizes))
    path = write(tmp_path / "results.jsonl", runs(*cells))
    assert recommended(path).options == {}
    alone = [Cell(cell.checkpoint, cell.latencies, "base", options={"gpu_memory_utilization": 0.5})
             for cell in cells]  # fmt: skip
    path = write(tmp_path / "alone.jsonl", runs(*alone))
    assert recommended(path).options == {"gpu_memory_utilization": 0.5}


def test_a_target_for_each_token_limits_how_many_run_at_once(results: Path) -> None:
    found = recommended(results, targets=TargetsConfig(tpot_ms=20.0), mix={"batch_1": 1.0})
    assert found.options["max_num_seqs"] == 8
    assert "20 ms a token" in found.reasons["max_num_seqs"]


def test_other_machines_and_models_are_no_answer(results: Path) -> None:
    for changes in ({"device": "NVIDIA A100"}, {"model": "llama"}):
        with pytest.raises(QuantlineError, match="it has: qwen3-8b on NVIDIA H200"):
            recommended(results, **changes)


def test_no_candidate_within_the_targets_is_no_answer(results: Path) -> None:
    with pytest.raises(QuantlineError, match="no candidate"):
        recommended(results, targets=TargetsConfig(tpot_ms=0.01))


def test_a_capacity_alone_is_an_answer(tmp_path: Path) -> None:
    results = write(tmp_path / "r.jsonl", [*searched("original", 10.0), *searched("fp8", 19.0)])
    found = recommended(results, targets=TargetsConfig(allow_unjudged=True))
    assert found.checkpoint == "fp8"
    reason = "it held the highest rate with it, in r.jsonl"
    assert found.reasons == {"tensor_parallel_size": reason}
