"""A real checkpoint on our kernels and on vLLM's own: log-probabilities of prompts of 1 to 1,800
tokens, and of greedy answers alone and in batches.

Most cases quantize a model whose widths are multiples of 128, and start vLLM twice. Qwen2.5-Coder
0.5B is a real model, with biases; `tiny`, whose two layers add up less noise, shows small errors.
The first start on a GPU measures our kernels. All of it takes some minutes, and the network.
"""

from pathlib import Path
from statistics import fmean

import pytest

from conf.hardware import compute_capability
from conf.schema.kernels import ATTENTION
from conf.schema.load import GpuConfig
from quantize.pipeline import quantize
from serve.kernels.attention.planning import OURS
from tests.conftest import quantize_config
from tests.serve.kernels.logits import (
    FP8,
    SPARSE_W8A8,
    TINY,
    W4A16,
    W4AFP8,
    W8A8,
    Tolerance,
    differences,
    faults_in_torch,
    served,
)

MODELS = ("tiny", pytest.param("qwen2.5-coder-0.5b", marks=pytest.mark.network))
CASES: dict[str, tuple[str, Tolerance]] = {
    "w8a8_smooth_gptq": ("int8", W8A8),
    "fp8_dynamic": ("fp8", FP8),
    "w4a16_gptq": ("w4a16", W4A16),
    "w4afp8_gptq": ("w4afp8", W4AFP8),
    "w8a8_sparse_smooth_gptq": ("int8 sparse", SPARSE_W8A8),
}
"""The kind of layers that our kernels log, and the tolerance for the larger model, by recipe."""
AMPERE, ADA, HOPPER = 8.0, 8.9, 9.0
NEEDED = {"fp8_dynamic": ADA, "w4afp8_gptq": HOPPER}
"""Compute capabilities. vLLM's W4AFP8 runs on Hopper only."""
OF_VLLM = {"cutlass_int8", "cutlass_fp8", "cutlass_w4a8", "marlin", "marlin_fp8", "machete"}
FEWEST_PLACES = 2
"""Tokens of an answer that are compared, on average: decoding begins with the second one."""

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("recipe", CASES)
def test_our_kernels_give_the_logits_of_vllms_own(recipe: str, model: str, tmp_path: Path) -> None:
    capability, needed = compute_capability(GpuConfig()) or 0.0, NEEDED.get(recipe, AMPERE)
    if capability < needed or (needed == HOPPER != capability):
        pytest.skip(f"it needs compute capability {needed:g}")
    kind, tolerance = CASES[recipe]
    folder = checkpoint_of(model, recipe, tmp_path)
    theirs = served(folder, "vllm", tmp_path / "vllm.json")
    ours = served(folder, "auto", tmp_path / "ours.json")
    assert theirs.layers == []
    products = {
        part.product for layer in ours.layers if layer.kind == kind for part in layer.ranges
    }
    assert products - OF_VLLM, f"no kernel of ours ran: {ours.layers}"
    found = differences(ours.scores, theirs.scores)
    means = f"prompts {fmean(found.prompts):.4f}, answers {fmean(found.answers):.4f}"
    print(f"{recipe} of {model}: {means}")
    print(f"largest {max(found.prompts + found.answers):.3f}, {len(found.answers)} places")
    assert len(found.answers) >= FEWEST_PLACES * len(theirs.scores.answers)
    assert found.faults(TINY if model == "tiny" else tolerance) == []


@pytest.mark.parametrize("model", MODELS)
def test_our_attention_gives_the_logits_of_vllms_own(model: str, tmp_path: Path) -> None:
    """With the products of both engines being vLLM's, attention alone differs."""
    if (compute_capability(GpuConfig()) or 0.0) < AMPERE:
        pytest.skip(f"it needs compute capability {AMPERE:g}")
    folder = checkpoint_of(model, "w4a16_gptq", tmp_path)
    theirs = served(folder, "vllm", tmp_path / "vllm.json")
    ours = served(folder, ATTENTION, tmp_path / "ours.json")
    (layer,) = [layer for layer in ours.layers if layer.kind == ATTENTION]
    assert OURS in {part.product for part in layer.ranges}, f"ours did not run: {layer}"
    found = differences(ours.scores, theirs.scores)
    assert len(found.answers) >= FEWEST_PLACES * len(theirs.scores.answers)
    assert found.faults(TINY if model == "tiny" else W4A16) == []


@pytest.mark.parametrize(("head", "kind"), [("int8", "w8a16"), ("fp8", "fp8a16")])
def test_an_8_bit_head_on_our_kernels_gives_the_logits_of_torch(
    head: str, kind: str, tmp_path: Path
) -> None:
    """vLLM's own kernel for an FP8 head needs a package that not every installation has."""
    if (compute_capability(GpuConfig()) or 0.0) < ADA:
        pytest.skip(f"it needs compute capability {ADA:g}")
    folder = checkpoint_of("tiny", "fp8_dynamic", tmp_path, f"lm_head={head}")
    ours = served(folder, "auto", tmp_path / "ours.json")
    model = quantize_config("model=tiny").model
    rows = model.architecture.vocab_size if model.architecture else 0
    (layer,) = [layer for layer in ours.layers if (layer.kind, layer.rows) == (kind, rows)]
    assert {part.product for part in layer.ranges} - OF_VLLM, f"no kernel of ours ran: {layer}"
    assert faults_in_torch(folder, model, ours.scores) == []


def checkpoint_of(model: str, recipe: str, folder: Path, *more: str) -> Path:
    options = [f"model={model}", f"recipe={recipe}", f"output_dir={folder}", *more]
    made = quantize(quantize_config(*options, "calibration.samples=16", "calibration.length=128"))
    assert made is not None
    return made
