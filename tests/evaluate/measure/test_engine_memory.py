"""The memory that an engine needs, by the checkpoint in a folder."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from conf.schema.load import EngineConfig
from evaluate.measure.engine_memory import EngineMemory
from evaluate.measure.side_by_side import WORKING_GIB
from serve.kernels.settings import KERNELS

SIZE = 1024


@pytest.mark.parametrize("is_sparse", [False, True])
def test_zeros_that_no_manifest_tells_of_are_counted(is_sparse: bool, tmp_path: Path) -> None:
    weight = torch.randint(1, 100, (SIZE, SIZE), dtype=torch.int8)
    if is_sparse:
        weight[:, ::2] = 0
    save_file({"model.layers.0.mlp.up_proj.weight": weight}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    layouts = 1 + (3 * 10 / 16 if is_sparse else 0)
    for recorded, copies in (({KERNELS: "auto"}, layouts), ({}, 1)):
        held_gib = EngineMemory(EngineConfig(), recorded).held_by(tmp_path, {})
        assert held_gib == pytest.approx(WORKING_GIB + copies * SIZE * SIZE / 2**30)
