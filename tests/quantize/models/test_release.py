"""A model's memory is freed although llm-compressor still refers to the model."""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from conf.schema.model import ModelConfig
from quantize import pipeline
from quantize.models.load import load
from quantize.models.release import release
from tests.conftest import quantize_config


def test_all_tensors_are_freed_while_the_model_is_still_referred_to(
    tiny: tuple[ModelConfig, Path],
) -> None:
    model, _ = load(tiny[1], tiny[0])
    tensors = [weakref.ref(tensor) for tensor in (*model.parameters(), *model.buffers())]
    assert all(tensor() is not None for tensor in tensors)
    release(model)
    assert [tensor() for tensor in tensors] == [None] * len(tensors)
    assert list(model.parameters()) == []


@pytest.mark.slow
def test_a_saved_model_is_not_held_beside_its_proof(
    tiny: tuple[ModelConfig, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights: list[weakref.ref[torch.Tensor]] = []
    held: list[bool] = []
    save, prove = pipeline.save.save, pipeline.prove

    def noting_save(model: Any, *others: Any) -> None:
        weights.extend(weakref.ref(tensor) for tensor in model.parameters())
        save(model, *others)

    def noting_prove(*arguments: Any) -> Any:
        gc.collect()
        held.append(any(tensor() is not None for tensor in weights))
        return prove(*arguments)

    monkeypatch.setattr(pipeline.save, "save", noting_save)
    monkeypatch.setattr(pipeline, "prove", noting_prove)
    options = (f"model.path={tiny[1]}", f"output_dir={tmp_path}", "recipe=fp8_dynamic")
    assert pipeline.quantize(quantize_config("model=tiny", *options)) is not None
    assert weights
    assert held == [False]
