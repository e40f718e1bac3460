"""Where tensor and pipeline parallelism may cut a checkpoint."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from conf.errors import QuantlineError
from conf.formats.quant_args import Codebooks, vector_args
from conf.schema.load import EngineOptions
from serve.engine import splits
from serve.engine.splits import check_splits, stage_share

LLAMA = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
}


def folder_of(
    folder: Path, weights: dict[str, Any] | None, ignore: tuple[str, ...] = (), **changes: Any
) -> Path:
    content: dict[str, Any] = LLAMA | changes
    if weights is not None:
        groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
        content["quantization_config"] = {"config_groups": groups, "ignore": list(ignore)}
    (folder / "config.json").write_text(json.dumps(content))
    return folder


def grouped(size: int) -> dict[str, Any]:
    return {"num_bits": 4, "type": "int", "strategy": "group", "group_size": size}


BLOCKS = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}
CHANNEL = {"num_bits": 8, "type": "int", "strategy": "channel"}


@pytest.mark.parametrize(
    ("weights", "gpus", "changes", "message"),
    [
        (None, 3, {}, "64 attention heads, which cannot be split evenly; .* 1, 2, 4, 8, 16, 32"),
        (None, 12, {"num_attention_heads": 96}, "8 key-value heads, which can neither"),
        (
            grouped(128),
            8,
            {"intermediate_size": 11008},
            "down_proj has 11008 columns in groups of 128, .* would do: 1, 2; or quantize with",
        ),
        (grouped(1024), 16, {}, "o_proj has 8192 columns in groups of 1024, which 16 parts"),
        (BLOCKS, 16, {"intermediate_size": 28544}, "gate_proj has 28544 rows in blocks of 128"),
        (grouped(32), 8, {"intermediate_size": 1056}, "down_proj has 1056 columns in groups of 32"),
        (
            grouped(128),
            8,
            {"intermediate_size": 11008, "model_type": "mixtral"},
            "w2 has 11008 columns in groups of 128",
        ),
    ],
)
def test_a_cut_names_the_layer_the_unit_and_the_sizes_that_would_do(
    weights: dict[str, Any] | None,
    gpus: int,
    changes: dict[str, Any],
    message: str,
    tmp_path: Path,
) -> None:
    folder = folder_of(tmp_path, weights, **changes)
    with pytest.raises(QuantlineError, match=f"engine.tensor_parallel_size={gpus}: .*{message}"):
        check_splits(folder, {"tensor_parallel_size": gpus})


@pytest.mark.parametrize(
    ("weights", "gpus"), [(grouped(128), 8), (BLOCKS, 8), (CHANNEL, 64), (None, 64)]
)
def test_cuts_between_units_are_accepted(
    weights: dict[str, Any] | None, gpus: int, tmp_path: Path
) -> None:
    check_splits(folder_of(tmp_path, weights), {"tensor_parallel_size": gpus})


def test_a_layer_that_is_not_quantized_has_no_groups(tmp_path: Path) -> None:
    options = {"tensor_parallel_size": 8}
    folder = folder_of(tmp_path, grouped(128), ("re:.*down_proj$",), intermediate_size=11008)
    check_splits(folder, options)
    experts = (r"re:.*block_sparse_moe\.experts\.[0-9]+\.w2$",)
    mixtral = {"model_type": "mixtral", "intermediate_size": 11008}
    check_splits(folder_of(tmp_path, grouped(128), experts, **mixtral), options)
    named = ("model.layers.0.mlp.gate_proj",)
    folder = folder_of(tmp_path, grouped(128), named, intermediate_size=11008)
    with pytest.raises(QuantlineError, match="down_proj"):
        check_splits(folder, options)


def test_vectors_stay_whole() -> None:
    weights = vector_args(Codebooks(8, 65536, outlier_vector_length=12))
    assert list(splits._row_units(weights)) == [(12, "vectors of 12")]
    assert list(splits._column_units(weights)) == []


def test_masks_stay_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splits, "is_pruned", lambda _: True)
    folder = folder_of(tmp_path, CHANNEL, intermediate_size=28672 + 8)
    with pytest.raises(QuantlineError, match="28680 columns in 2:4 masks of four, which 4 parts"):
        check_splits(folder, {"tensor_parallel_size": 4})
    check_splits(folder, {"tensor_parallel_size": 2})


def test_more_gpus_than_key_heads_copy_them(tmp_path: Path) -> None:
    check_splits(folder_of(tmp_path, BLOCKS), {"tensor_parallel_size": 16})


def test_stages_and_the_executor_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(tmp_path, None)
    with pytest.raises(QuantlineError, match="pipeline_parallel_size=81: the model has 80 layers"):
        check_splits(folder, {"pipeline_parallel_size": 81})
    on_ray: EngineOptions = {"distributed_executor_backend": "ray"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(QuantlineError, match="=ray: the package ray is not installed"):
        check_splits(folder, on_ray)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: "found")
    monkeypatch.setattr(splits, "gpu_handles", list)
    with pytest.raises(QuantlineError, match="=ray: vLLM runs on Ray with GPUs only"):
        check_splits(folder, on_ray)
    monkeypatch.setattr(splits, "gpu_handles", lambda: ["one"])
    check_splits(folder, on_ray)


def test_the_largest_stage_has_the_rest_of_the_layers() -> None:
    assert stage_share(LLAMA, 1) == 1.0
    assert stage_share(LLAMA, 3) == 27 / 80
