"""The comparison of kernels by a checkpoint's log-probabilities, proven where there is no GPU."""

import math
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from conf.schema.model import ModelConfig
from tests.serve.kernels.logits import (
    Differences,
    Place,
    Scores,
    Tolerance,
    differences,
    faults_in_torch,
    served,
)

SCALE = "model.layers.0.mlp.down_proj.weight_scale"
A, B = Place(1, {1: -0.1, 2: -2.5}), Place(2, {1: -1.0, 2: -0.9})
CLOSE, FAR = Place(2, {1: -1.1, 2: -1.0}), Place(3, {3: -0.1, 4: -2.0})


def scores_of(*answer: Place) -> Scores:
    return Scores([[5, 6]], [[-1.0]], [list(answer)])


def test_answers_are_compared_until_they_part() -> None:
    ours, theirs = scores_of(A, Place(1, {1: -0.9, 2: -1.0}), A), scores_of(A, B, FAR)
    found = differences(ours, theirs)
    assert found.prompts == [0.0]
    assert sorted(found.answers) == pytest.approx([0.0, 0.1, 0.1])
    assert differences(scores_of(B), scores_of(CLOSE)).answers == pytest.approx([0.1])


def test_a_token_that_the_other_engine_finds_unlikely_is_infinitely_far() -> None:
    assert differences(scores_of(A), scores_of(FAR)).answers == [math.inf, math.inf]


@pytest.mark.parametrize(
    ("prompts", "answers", "faults"),
    [
        ([0.0, 0.2], [0.0, 0.4], []),
        ([0.2, 0.3], [0.0], ["the mean of prompts is 0.25, and 0.2 are tolerated"]),
        ([0.0], [0.3, 0.4], ["the mean of answers is 0.35, and 0.3 are tolerated"]),
        ([0.0, 0.0, 0.5], [0.0], ["the largest is 0.5, and 0.4 are tolerated"]),
        ([0.0], [math.nan, 0.0], ["the mean of answers is nan", "the largest is nan"]),
        ([0.0] * 5, [math.inf], ["the mean of answers is inf", "the largest is inf"]),
    ],
)
def test_a_tolerance_is_of_means_and_of_the_largest(
    prompts: list[float], answers: list[float], faults: list[str]
) -> None:
    found = Differences(prompts, answers).faults(Tolerance(0.2, 0.3, 0.4))
    assert [text[: len(fault)] for text, fault in zip(found, faults, strict=True)] == faults


@pytest.mark.slow
def test_equal_engines_do_not_differ_and_a_damaged_scale_does(
    tiny_checkpoint: Path, tiny: tuple[ModelConfig, Path], tmp_path: Path
) -> None:
    """Two starts of vLLM on its own kernels; plain PyTorch takes the place of a third one with a
    wrong kernel."""
    first, second = (
        served(tiny_checkpoint, "vllm", tmp_path / name).scores for name in ("first", "second")
    )
    found = differences(first, second)
    assert len(found.prompts) > 3000
    assert len(found.answers) > 700
    assert found.faults(Tolerance(0.0, 0.0, 0.0)) == []
    assert faults_in_torch(tiny_checkpoint, tiny[0], first) == []
    copy = Path(shutil.copytree(tiny_checkpoint, tmp_path / "copy"))
    tensors = load_file(copy / "model.safetensors")
    tensors[SCALE] *= 1.5
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    assert faults_in_torch(copy, tiny[0], first)
