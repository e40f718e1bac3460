"""The seam between our solver and llm-compressor's modifiers."""

import inspect
from collections import defaultdict

import pytest
import torch
from llmcompressor.modifiers import Modifier
from llmcompressor.modifiers.gptq import GPTQModifier
from llmcompressor.modifiers.gptq.helpers import update_batch_qparams
from llmcompressor.modifiers.pruning.sparsegpt import SparseGPTModifier
from llmcompressor.utils.metric_logging import CompressionLogger

from quantize.calibrate.hooks import Zeros, gptq_solver, noted_errors, sparsegpt_solver

METHODS = {
    "calibrate_module": ["self", "module", "args", "_output"],
    "compress_modules": ["self"],
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("modifier", [GPTQModifier, SparseGPTModifier])
def test_the_methods_we_replace_are_where_they_were(modifier: type[Modifier], name: str) -> None:
    """Fails when a new llm-compressor moves what we hook into."""
    assert list(inspect.signature(vars(modifier)[name]).parameters) == METHODS[name]


@pytest.mark.parametrize(
    ("modifier", "names"),
    [
        (GPTQModifier, ["_rtn_fallback_module_names", "_module_names", "_num_compressed_modules"]),
        (GPTQModifier, ["dampening_frac", "block_size"]),
        (SparseGPTModifier, ["dampening_frac", "block_size", "preserve_sparsity_mask"]),
    ],
)
def test_the_fields_we_read_are_where_they_were(modifier: type[Modifier], names: list[str]) -> None:
    assert set(names) <= set(modifier.model_fields) | set(modifier.__private_attributes__)


def test_qparams_are_written_by_module() -> None:
    parameters = list(inspect.signature(update_batch_qparams).parameters)
    assert parameters[:5] == ["modules", "quantized", "scales", "zero_points", "global_scales"]


def test_methods_are_put_back() -> None:
    classes = (GPTQModifier, SparseGPTModifier)
    before = [vars(modifier)[name] for modifier in classes for name in METHODS]
    with gptq_solver(Zeros.KEPT), sparsegpt_solver():
        during = [vars(modifier)[name] for modifier in classes for name in METHODS]
    after = [vars(modifier)[name] for modifier in classes for name in METHODS]
    assert not set(map(id, before)) & set(map(id, during))
    assert before == after


def test_errors_are_noted_by_module_and_step() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    errors: dict[str, dict[str, float]] = defaultdict(dict)
    with noted_errors(model, errors), CompressionLogger(model[1]) as logger:
        logger.set_results(name="SGPT", loss=3.0)
        logger.set_results(name="GPTQ", loss=0.5)
    with CompressionLogger(model[0]) as logger:
        logger.set_results(name="GPTQ", loss=0.7)
    assert errors == {"1": {"sgpt": 3.0, "gptq": 0.5}}
