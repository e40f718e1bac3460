"""Made-up weights, read back by compressed-tensors' own decoders: spread as a model's are."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32

from conf.formats.quantization_config import read_quantization
from conf.schema.load import EngineConfig
from evaluate.measure.engines import LoadRequest, create
from evaluate.measure.engines import transformers as transformers_engine
from evaluate.measure.engines.random_weights import (
    MOST_AT_ONCE,
    SIGMA,
    WeightSpread,
    WeightSpreads,
    fill,
)
from evaluate.measure.targets import targets
from tests.conftest import evaluate_config
from tests.quantize.models.made import make_checkpoint, make_original

ROWS, COLUMNS, GROUP = 64, 512, 128
IN_VLLM = """
import json, sys
from pathlib import Path
import torch
from conf.schema.load import EngineConfig
from evaluate.measure.engines import LoadRequest, create, random_weights
from evaluate.measure.workload import Load, PlannedRequest

fill, seen = random_weights.fill, {}

def looked_at(tensors, spread):
    fill(tensors, spread)
    if "weight_scale" in tensors and not seen:
        seen.update({name: tensor.clone().float().cpu() for name, tensor in tensors.items()})

random_weights.fill = looked_at  # vLLM itself imports what uses it
engine = create(LoadRequest(Path(sys.argv[1]), EngineConfig(), 64, True, Path(sys.argv[2])))
answers = engine.run_requests(Load([PlannedRequest([20] * 8, 3)] * 2, 2))
codes = seen.get("weight_packed", seen.get("weight"))
found = {
    "zeros": (codes == 0).float().mean().item(),
    "different": codes.unique().numel(),
    "deviation": codes.std().item() * seen["weight_scale"].mean().item(),
    "scale": seen["weight_scale"].mean().item(),
    "tokens": [answer.output_tokens for answer in answers],
}
print("\\n" + json.dumps(found))
"""


class Packed(torch.Tensor):
    """As vLLM's parameters, which note how many weights share a word."""

    packed_factor = 8


class PackedByFour(torch.Tensor):
    packed_factor = 4


def words(kind: type[torch.Tensor], *shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32).as_subclass(kind)


def filled(
    sparse: bool = False, bits: int = 16, **tensors: torch.Tensor
) -> dict[str, torch.Tensor]:
    fill(tensors, WeightSpread(torch.Generator().manual_seed(7), bits, sparse, min(8, bits)))
    return {name: tensor.as_subclass(torch.Tensor) for name, tensor in tensors.items()}


def groups_widened(scale: torch.Tensor, group: int) -> torch.Tensor:
    return scale.float().repeat_interleave(group, dim=1)


def int4(sparse: bool = False) -> torch.Tensor:
    made = filled(
        sparse,
        weight_packed=words(Packed, ROWS, COLUMNS // 8),
        weight_scale=torch.zeros(ROWS, COLUMNS // GROUP),
    )
    codes = unpack_from_int32(made["weight_packed"], 4, torch.Size((ROWS, COLUMNS)))
    return codes.float() * groups_widened(made["weight_scale"], GROUP)


def int4_with_zero_points() -> torch.Tensor:
    made = filled(
        weight_packed=words(Packed, ROWS, COLUMNS // 8),
        weight_scale=torch.zeros(ROWS, COLUMNS // GROUP),
        weight_zero_point=words(Packed, ROWS // 8, COLUMNS // GROUP),
    )
    shape = torch.Size((ROWS, COLUMNS // GROUP))
    zeros = unpack_from_int32(made["weight_zero_point"], 4, shape, packed_dim=0)
    assert 0 < zeros.float().std() < 1.5
    codes = unpack_from_int32(made["weight_packed"], 4, torch.Size((ROWS, COLUMNS)))
    scale = groups_widened(made["weight_scale"], GROUP)
    return (codes.float() - groups_widened(zeros, GROUP)) * scale


def packed_int8() -> torch.Tensor:
    made = filled(
        weight_packed=words(PackedByFour, ROWS, COLUMNS // 4),
        weight_scale=torch.zeros(ROWS, COLUMNS // GROUP),
    )
    codes = unpack_from_int32(made["weight_packed"], 8, torch.Size((ROWS, COLUMNS)))
    return codes.float() * groups_widened(made["weight_scale"], GROUP)


def eight_bit(dtype: torch.dtype, sparse: bool = False) -> torch.Tensor:
    made = filled(
        sparse,
        weight=torch.zeros(ROWS, COLUMNS, dtype=dtype),
        weight_scale=torch.zeros(ROWS, 1),
    )
    return made["weight"].float() * made["weight_scale"]


def fp4() -> torch.Tensor:
    made = filled(
        weight_packed=torch.zeros(ROWS, COLUMNS // 2, dtype=torch.uint8),
        weight_scale=torch.zeros(ROWS, COLUMNS // 16, dtype=torch.float8_e4m3fn),
        weight_global_scale=torch.zeros(1),
    )
    codes = unpack_fp4_from_uint8(made["weight_packed"], ROWS, COLUMNS).float()
    return codes * groups_widened(made["weight_scale"], 16) / made["weight_global_scale"]


def experts() -> torch.Tensor:
    """Eight bits in words, without a note of how many share one."""
    made = filled(
        bits=8,
        w13_weight_packed=torch.zeros(2, ROWS, COLUMNS // 4, dtype=torch.int32),
        w13_weight_scale=torch.zeros(2, ROWS, COLUMNS // GROUP),
    )
    words = made["w13_weight_packed"].view(-1, COLUMNS // 4)
    codes = unpack_from_int32(words, 8, torch.Size((2 * ROWS, COLUMNS)))
    return codes.float() * groups_widened(made["w13_weight_scale"].view(2 * ROWS, -1), GROUP)


def int4_in_bytes() -> torch.Tensor:
    made = filled(
        bits=4,
        weight=torch.zeros(ROWS, COLUMNS, dtype=torch.int8),
        weight_scale=torch.zeros(ROWS, COLUMNS // GROUP),
    )
    assert made["weight"].abs().max() <= 8
    return made["weight"].float() * groups_widened(made["weight_scale"], GROUP)


def fp4_with_exponents() -> torch.Tensor:
    made = filled(
        weight_packed=torch.zeros(ROWS, COLUMNS // 2, dtype=torch.uint8),
        weight_scale=torch.zeros(ROWS, COLUMNS // 32, dtype=torch.uint8),
    )
    codes = unpack_fp4_from_uint8(made["weight_packed"], ROWS, COLUMNS).float()
    return codes * groups_widened(2.0 ** (made["weight_scale"].float() - 127), 32)


def fp8_blocks() -> torch.Tensor:
    made = filled(
        weight=torch.zeros(ROWS, COLUMNS, dtype=torch.float8_e4m3fn),
        weight_scale_inv=torch.zeros(1, COLUMNS // GROUP),
    )
    return made["weight"].float() * groups_widened(made["weight_scale_inv"], GROUP)


MADE = {
    "experts, int8": experts,
    "int4 in bytes": int4_in_bytes,
    "fp4 with exponents": fp4_with_exponents,
    "fp8 in blocks": fp8_blocks,
    "int4": int4,
    "int4 with zero points": int4_with_zero_points,
    "int8, packed": packed_int8,
    "int8": lambda: eight_bit(torch.int8),
    "fp8": lambda: eight_bit(torch.float8_e4m3fn),
    "fp4": fp4,
    "bf16": lambda: filled(weight=torch.zeros(ROWS, COLUMNS, dtype=torch.bfloat16))["weight"],
}


@pytest.mark.parametrize("name", MADE)
def test_weights_are_as_wide_as_a_models_and_few_are_zero(name: str) -> None:
    weights = MADE[name]().float()
    assert weights.std() == pytest.approx(SIGMA, rel=0.25)
    assert abs(weights.mean()) < SIGMA / 5
    assert (weights == 0).float().mean() < 0.25
    assert weights.unique().numel() > 10


@pytest.mark.parametrize("weights", [int4(True), eight_bit(torch.int8, True)], ids=["int4", "int8"])
def test_a_pruned_recipe_has_two_zeros_of_four(weights: torch.Tensor) -> None:
    zeros = (weights.view(-1, 4) == 0).sum(1)
    assert zeros.min() >= 2
    assert zeros.float().mean() < 2.5


def test_what_is_no_weight_is_left_or_neutral() -> None:
    made = filled(
        weight=torch.zeros(COLUMNS),
        input_scale=torch.zeros(1),
        input_global_scale=torch.zeros(()),
        gate=torch.zeros(()),
        k_scale=torch.tensor(-1.0),
        weight_shape=torch.tensor([ROWS, COLUMNS]),
        bias=torch.zeros(COLUMNS),
    )
    assert made["weight"].unique().tolist() == [1.0]  # a norm
    assert made["input_scale"] > 0
    assert made["input_global_scale"] > 1
    assert made["k_scale"] == -1
    assert made["weight_shape"].tolist() == [ROWS, COLUMNS]
    assert made["bias"].std() > 0


def test_a_large_tensor_is_made_in_parts_that_differ() -> None:
    rows = 2 * MOST_AT_ONCE // COLUMNS
    made = filled(weight=torch.zeros(rows, COLUMNS, dtype=torch.int8), weight_scale=torch.zeros(1))
    first, second = made["weight"].chunk(2)
    assert math.isclose(first.float().std(), second.float().std(), rel_tol=0.01)
    assert not first.equal(second)


def in_vllm(recipe: str, folder: Path) -> dict[str, Any]:
    """What vLLM was given to run, in a process of its own."""
    config = evaluate_config("model=tiny", "weights=random", f"recipes=[{recipe}]")
    log = folder / "log"
    with log.open("wb") as chatter:
        result = subprocess.run(
            [sys.executable, "-c", IN_VLLM, str(targets(config)[1].folder), str(log)],
            stdout=chatter,
            stderr=subprocess.STDOUT,
            env=os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
            check=False,
        )
    assert result.returncode == 0, log.read_text()[-2000:]
    lines = log.read_text().splitlines()
    found: dict[str, Any] = json.loads(next(line for line in lines if line.startswith("{")))
    return found


@pytest.mark.slow
def test_vllm_runs_on_them_and_not_on_its_own(tmp_path: Path) -> None:
    found = in_vllm("w8a8_sparse_smooth_gptq", tmp_path)
    assert found["zeros"] == pytest.approx(0.5, abs=0.02)
    assert found["different"] > 200
    assert found["deviation"] == pytest.approx(SIGMA * math.sqrt(0.5), rel=0.1)
    assert found["tokens"] == [3, 3]


@pytest.mark.gpu
@pytest.mark.parametrize("recipe", ["w4a16_awq", "w8a16_awq", "fp8_dynamic"])
def test_vllm_runs_on_them_on_a_gpu(recipe: str, tmp_path: Path) -> None:
    found = in_vllm(recipe, tmp_path)
    assert found["zeros"] < 0.02
    assert found["different"] > 100
    assert SIGMA / 200 < found["scale"] < SIGMA / 2


@pytest.mark.slow
def test_transformers_has_them_too_and_a_head_is_not_pruned(tmp_path: Path) -> None:
    recipes = ["sparse24", "w4a16_awq"]
    config = evaluate_config(
        "model=tiny", "weights=random", f"recipes=[{','.join(recipes)}]", "engine=transformers",
        "original=false",
    )  # fmt: skip
    sparse, packed = (
        create(LoadRequest(Path(str(target.folder)), config.engine, 64, True, tmp_path / "log"))
        for target in targets(config)
    )
    model = sparse.model  # type: ignore[attr-defined]
    weights = model.model.layers[0].mlp.down_proj.weight
    assert (weights.view(-1, 4) == 0).sum(1).unique().tolist() == [2]
    assert (model.get_output_embeddings().weight == 0).float().mean() < 0.01
    layer = packed.model.model.layers[0].mlp.down_proj  # type: ignore[attr-defined]
    shape = torch.Size((layer.out_features, layer.in_features))
    codes = unpack_from_int32(layer.weight_packed, 4, shape).float()
    assert codes.std() * layer.weight_scale.float().mean() == pytest.approx(SIGMA, rel=0.2)


@pytest.mark.parametrize("form", ["nvfp4", "fp8"])
@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
def test_without_bf16_units_a_checkpoint_runs_in_float32(
    form: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FP4 too, which compressed-tensors unpacks to bf16, whatever the model's type is."""
    monkeypatch.setattr(transformers_engine, "is_slow_in_bf16", lambda: True)
    checkpoint = make_checkpoint(tmp_path / form, make_original(tmp_path / "original"), form)
    options = EngineConfig(kind="transformers", dtype=dtype)
    engine = create(LoadRequest(checkpoint, options, 64, False, tmp_path / "log"))
    assert len(engine.score_window([5, 6, 7, 8], 2).chosen) == 3
    layer = engine.model.model.layers[0].mlp.down_proj  # type: ignore[attr-defined]
    assert layer.weight.dtype == (torch.float32 if dtype == "auto" else torch.bfloat16)


@pytest.mark.parametrize(("bits", "expected"), [(4, "auto"), (8, torch.float32)])
def test_random_fp4_is_never_run_in_float32(
    bits: int, expected: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays packed, and compressed-tensors unpacks it to bf16."""
    monkeypatch.setattr(transformers_engine, "is_slow_in_bf16", lambda: True)
    group = {"targets": ["Linear"], "weights": {"num_bits": bits, "type": "float"}}
    content = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": content}))
    load = LoadRequest(tmp_path, EngineConfig(), 64, True, tmp_path / "log")
    assert transformers_engine._dtype(load) == expected
    load.engine.dtype = "bfloat16"
    assert transformers_engine._dtype(load) == torch.bfloat16


@pytest.mark.slow
def test_layers_in_codebooks_have_weights_of_a_usual_size(tmp_path: Path) -> None:
    config = evaluate_config(
        "model=tiny", "weights=random", "recipes=[vptq_2bit]", "engine=transformers",
        "original=false",
    )  # fmt: skip
    (target,) = targets(config)
    engine = create(
        LoadRequest(Path(str(target.folder)), config.engine, 64, True, tmp_path / "log")
    )
    layer = engine.model.model.layers[0].mlp.down_proj.layer()  # type: ignore[attr-defined]
    weights = layer.dequantize()
    assert float(weights.std()) == pytest.approx(SIGMA, rel=0.2)
    main, residual = layer.numbers()
    assert len(main.unique()) == 256
    assert residual is None


def test_merged_layers_in_codebooks_keep_columns_in_order() -> None:
    """vLLM has the tensors of merged layers in one parameter each."""
    tensors = {
        "indices": torch.zeros(2, 1, 4, 8, dtype=torch.int32),
        "perm": torch.zeros(2, 32, dtype=torch.int16),
        "weight_scale": torch.zeros(2, 32),
        "weight_bias": torch.ones(2, 32),
    }
    fill(tensors, WeightSpreads(None, sparse=False).of(tensors, True))
    assert tensors["perm"].tolist() == [list(range(32))] * 2
    assert bool((tensors["weight_scale"] == 1).all())
    assert bool((tensors["weight_bias"] == 0).all())
    assert len(tensors["indices"].unique()) > 32


def test_a_mix_of_widths_leaves_bytes_as_wide_as_the_widest() -> None:
    groups = {"a": {"weights": {"num_bits": 4}}, "b": {"weights": {"num_bits": 8}}}
    quantization = read_quantization({"config_groups": groups}, "config.json")
    spread = WeightSpreads(quantization, sparse=False).of({"weight": torch.zeros(1)}, True)
    assert (spread.bits, spread.widest) == (4, 8)
