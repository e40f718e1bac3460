"""The seam between our solver and llm-compressor's modifiers."""

import dataclasses
import inspect
from collections import defaultdict
from typing import Any

import pytest
import torch
from llmcompressor.modifiers import Modifier
from llmcompressor.modifiers.gptq import GPTQModifier
from llmcompressor.modifiers.gptq.helpers import update_batch_qparams
from llmcompressor.modifiers.pruning.sparsegpt import SparseGPTModifier
from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier
from llmcompressor.modifiers.transform.smoothquant.base import SmoothQuantMapping, SmoothQuantScale
from llmcompressor.utils.metric_logging import CompressionLogger
from rich.console import Console

from conf.errors import QuantlineError
from quantize.calibrate import hooks
from quantize.calibrate.batches import batches
from quantize.calibrate.compress import compress
from quantize.calibrate.hooks import (
    Zeros,
    gptq_solver,
    noted_errors,
    shared_smoothing,
    sparsegpt_solver,
)
from quantize.models.fetch import fetch
from quantize.models.load import load
from quantize.modifiers import modifiers
from quantize.preflight import with_options
from tests.conftest import quantize_config

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


def test_smoothquant_is_as_it_was() -> None:
    assert list(inspect.signature(SmoothQuantModifier._setup_scale_hooks).parameters) == ["self"]
    smoothing = inspect.signature(SmoothQuantModifier._apply_smoothing)
    assert list(smoothing.parameters) == ["self", "model"]
    assert {"scales_", "resolved_mappings_"} <= set(SmoothQuantModifier.model_fields)
    names = {field.name for field in dataclasses.fields(SmoothQuantScale)}
    assert names == {"min_channel_vals", "max_channel_vals"}
    assert {"smooth_name", "smooth_layer", "balance_layers"} <= {
        field.name for field in dataclasses.fields(SmoothQuantMapping)
    }


def test_methods_are_put_back() -> None:
    replaced = [
        (modifier, name) for modifier in (GPTQModifier, SparseGPTModifier) for name in METHODS
    ]
    replaced += [(SmoothQuantModifier, "_setup_scale_hooks")]
    replaced += [(SmoothQuantModifier, "_apply_smoothing")]
    before = [vars(modifier)[name] for modifier, name in replaced]
    with gptq_solver(Zeros()), sparsegpt_solver(), shared_smoothing():
        during = [vars(modifier)[name] for modifier, name in replaced]
    after = [vars(modifier)[name] for modifier, name in replaced]
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


def test_noting_errors_asks_no_driver_for_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*_: Any) -> None:
        raise AssertionError("the logger asks every GPU")

    monkeypatch.setattr(CompressionLogger, "__exit__", ask)
    module = torch.nn.Linear(2, 2, bias=False)
    errors: dict[str, dict[str, float]] = defaultdict(dict)
    with noted_errors(torch.nn.Sequential(module), errors):
        weight = module.weight.data
        hooks.log_errors("GPTQ", (module,), [weight], [weight * 1.5], torch.eye(2))
    assert errors == {"0": {"gptq": pytest.approx(0.5)}}


def test_one_range_is_that_of_every_batch() -> None:
    norm = torch.nn.LayerNorm(3)

    class Mapping:
        smooth_name, smooth_layer = "norm", norm

    class Modifier:
        def __init__(self) -> None:
            self.resolved_mappings_ = [Mapping()]
            self.scales_: dict[str, SmoothQuantScale] = {}

        def register_hook(self, module: torch.nn.Module, hook: Any, kind: str) -> None:
            module.register_forward_hook(hook)

    modifier = Modifier()
    with shared_smoothing():
        SmoothQuantModifier._setup_scale_hooks(modifier)
    outputs = torch.cat([norm(torch.randn(2, 4, 3)).reshape(-1, 3) for _ in range(3)])
    assert torch.equal(modifier.scales_["norm"].min_channel_vals, outputs.amin(0))
    assert torch.equal(modifier.scales_["norm"].max_channel_vals, outputs.amax(0))


# ---- zeros ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "of_layers", "of_head"),
    [
        ([], ["chosen", "kept"], []),
        (["recipe.sparsegpt.joint=true", "recipe.gptq.block_size=10"], ["chosen"], []),
        (["recipe.sparsegpt.joint=true", "lm_head=int8"], ["chosen"], ["none"]),
    ],
)
def test_zeros_are_chosen_once(
    options: list[str], of_layers: list[str], of_head: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SparseGPT's zeros stay; with joint=true GPTQ chooses them; the head is not pruned."""
    seen: dict[str, list[str]] = {"layers": [], "head": []}
    solve = hooks.solve

    def noting(weights: torch.Tensor, products: Any, grid: Any, pruning: Any, **rest: Any) -> Any:
        kind = "chosen" if pruning.choose else "none" if pruning.kept is None else "kept"
        head = model.get_output_embeddings().weight.data
        kinds = seen["head" if torch.equal(weights, head) else "layers"]
        if kind not in kinds:
            kinds.append(kind)
        return solve(weights, products, grid, pruning, **rest)

    monkeypatch.setattr(hooks, "solve", noting)
    config = quantize_config("model=tiny", "recipe=w8a8_sparse_smooth_gptq", *options)
    model, tokenizer = load(fetch(config.model), config.model)
    vocabulary = model.config.vocab_size
    recipe = with_options(config, model)
    samples = torch.randint(vocabulary, (4, 32), generator=torch.Generator().manual_seed(0))
    data = batches(samples.tolist(), 2)
    compress(model, tokenizer, recipe, modifiers(recipe), data, None, Console(quiet=True))
    assert seen == {"layers": of_layers, "head": of_head}
    for name, module in model.model.layers.named_modules():
        if isinstance(module, torch.nn.Linear):
            zeros = (module.weight.unflatten(1, (-1, 4)) == 0).sum(-1)
            assert (zeros >= 2).all(), name


def test_joint_needs_gptq() -> None:
    config = quantize_config("recipe=w8a16_sparse_awq", "recipe.sparsegpt.joint=true")
    with pytest.raises(QuantlineError, match=r"recipe\.sparsegpt\.joint=true needs the step gptq"):
        modifiers(config.recipe)
