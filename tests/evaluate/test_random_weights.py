"""Made-up weights, read back by compressed-tensors' own decoders: spread as a model's are."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32

from evaluate.engines.random_weights import MOST_AT_ONCE, SIGMA, fill
from evaluate.targets import targets
from tests.conftest import evaluate_config

ROWS, COLUMNS, GROUP = 64, 512, 128
IN_VLLM = """
import json, sys
from pathlib import Path
from conf.load_schema import EngineConfig, ScenarioConfig
from evaluate.engines import Load, create

engine = create(Load(Path(sys.argv[1]), EngineConfig(), 64, True, Path(sys.argv[2])))
(embedding,) = engine.llm.apply_model(lambda model: next(model.parameters()).float().std().item())
answers = engine.take([[20] * 8] * 2, ScenarioConfig(8, 3, batch=2))
print(json.dumps({"embedding": embedding, "tokens": [a.output_tokens for a in answers]}))
"""


class Packed(torch.Tensor):
    """As vLLM's parameters, which note how many weights share a word."""

    packed_factor = 8


class PackedByFour(torch.Tensor):
    packed_factor = 4


def words(kind: type[torch.Tensor], *shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32).as_subclass(kind)


def filled(sparse: bool = False, **tensors: torch.Tensor) -> dict[str, torch.Tensor]:
    fill(tensors, sparse, torch.Generator().manual_seed(7))
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


MADE = {
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
    assert weights.std() == pytest.approx(SIGMA, rel=0.2)
    assert abs(weights.mean()) < SIGMA / 5
    assert (weights == 0).float().mean() < 0.2
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
        k_scale=torch.tensor(-1.0),
        weight_shape=torch.tensor([ROWS, COLUMNS]),
        bias=torch.zeros(COLUMNS),
    )
    assert made["weight"].unique().tolist() == [1.0]  # a norm
    assert made["input_scale"] > 0
    assert made["k_scale"] == -1
    assert made["weight_shape"].tolist() == [ROWS, COLUMNS]
    assert made["bias"].std() > 0


def test_a_large_tensor_is_made_in_parts_that_differ() -> None:
    rows = 2 * MOST_AT_ONCE // COLUMNS
    made = filled(weight=torch.zeros(rows, COLUMNS, dtype=torch.int8), weight_scale=torch.zeros(1))
    first, second = made["weight"].chunk(2)
    assert math.isclose(first.float().std(), second.float().std(), rel_tol=0.01)
    assert not first.equal(second)


@pytest.mark.slow
def test_vllm_runs_on_them_and_not_on_its_own(tmp_path: Path) -> None:
    config = evaluate_config("model=tiny", "weights=random", "recipes=[w8a8_smooth_gptq]")
    folder = targets(config)[1].folder
    log = tmp_path / "log"
    with log.open("wb") as chatter:
        result = subprocess.run(
            [sys.executable, "-c", IN_VLLM, str(folder), str(log)],
            stdout=chatter,
            stderr=subprocess.STDOUT,
            env=os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
            check=False,
        )
    assert result.returncode == 0, log.read_text()[-2000:]
    found = json.loads(next(line for line in log.read_text().splitlines() if line[0:1] == "{"))
    assert found["embedding"] == pytest.approx(SIGMA, rel=0.05)
    assert found["tokens"] == [3, 3]
