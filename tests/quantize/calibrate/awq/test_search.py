"""AWQ's search: its losses against float64 formulas, its choice against llm-compressor's own."""

import contextlib
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationConfig,
    QuantizationScheme,
    apply_quantization_config,
)
from compressed_tensors.utils import patch_attr
from llmcompressor.modifiers.transform.awq import AWQMapping, AWQModifier
from llmcompressor.modifiers.transform.awq import base as awq
from llmcompressor.modifiers.transform.awq.dynamic_mappings import get_layer_mappings_from_model
from llmcompressor.modifiers.transform.awq.mappings import ResolvedMapping
from llmcompressor.utils.helpers import DisableQuantization, calibration_forward_context
from loguru import logger
from torch.nn import Linear, Module
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from quantize.benchmark.measuring import layer_errors
from quantize.calibrate.awq import search as awq_search
from quantize.calibrate.awq.rounding import minmax_observers, rounded
from quantize.calibrate.awq.sample import Sample
from quantize.calibrate.awq.search import gram_search, library_search
from quantize.calibrate.solver.products import Products, output_energy
from quantize.steps.awq import SEARCH_SEQUENCES, STEP
from tests.conftest import quantize_config
from tests.quantize.models.made import SHAPE, VOCABULARY

FAMILIES = {"llama": LlamaConfig, "qwen3": Qwen3Config}
GROUP, LENGTH, GRID = 32, 16, 8
INT4 = QuantizationArgs(num_bits=4, strategy="group", group_size=GROUP, symmetric=False)
SCHEMES = {
    "int4, zero points": INT4,
    "int4": QuantizationArgs(num_bits=4, strategy="group", group_size=GROUP),
    "int8, channel": QuantizationArgs(num_bits=8, strategy="channel"),
    "nvfp4": QuantizationArgs(
        num_bits=4,
        type="float",
        strategy="tensor_group",
        group_size=16,
        scale_dtype=torch.float8_e4m3fn,
        zp_dtype=torch.float8_e4m3fn,
    ),
}
Search = Callable[[], AbstractContextManager[None]]
Parameters = dict[str, torch.Tensor]


def made_model(family: str, weights: QuantizationArgs = INT4) -> Any:
    """A model whose inputs and weights differ much from channel to channel; v and o have the same
    width, so that every mapping is used."""
    torch.manual_seed(3)
    shape = SHAPE | {"num_key_value_heads": SHAPE["num_attention_heads"]}
    config = FAMILIES[family](**shape, dtype="float32")
    model = AutoModelForCausalLM.from_config(config).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data.mul_(torch.exp(torch.randn_like(parameter)))
        elif name.endswith("_proj.weight"):
            parameter.data.mul_(8)
    quantize_linears(model, weights)
    return model


def quantize_linears(model: Module, weights: QuantizationArgs) -> None:
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    groups = QuantizationConfig(config_groups={"all": scheme}, ignore=["lm_head"])
    apply_quantization_config(model, groups)


def token_batches(sequences: int, size: int, length: int = LENGTH) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(VOCABULARY, (sequences, length), generator=generator)
    return list(tokens.split(size))


def scale(
    model: Any,
    batches: list[torch.Tensor],
    patches: Search,
    duo_scaling: bool | str = True,
    attention: str = "eager",
) -> Parameters:
    """The model's parameters after AWQ."""
    mappings = get_layer_mappings_from_model(model)
    modifier = AWQModifier(
        mappings=mappings, n_grid=GRID, duo_scaling=duo_scaling, offload_device=None
    )
    with (
        patches(),
        calibration_forward_context(model),
        patch_attr(model.config, "_attn_implementation", attention),
        DisableQuantization(model),
    ):
        modifier._set_resolved_mappings(model)
        modifier._setup_activation_cache_hooks()
        for batch in batches:
            model.model(batch)
        modifier._apply_smoothing(model)
        modifier.remove_hooks()
    assert len(modifier._error_metrics) == 4 * SHAPE["num_hidden_layers"]  # qkv, o, gate/up, down
    return {name: tensor.detach() for name, tensor in model.named_parameters() if "_proj" in name}


def weights_of(parameters: Parameters) -> Parameters:
    return {name: value for name, value in parameters.items() if name.endswith("_proj.weight")}


# ---- the loss and the choice ---------------------------------------------------------------


def test_the_gram_loss_is_the_loss_of_the_output() -> None:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(3, 40, 24, generator=generator) * torch.rand(24, generator=generator)
    errors = torch.randn(8, 24, generator=generator) / 100
    products = Products(24, torch.device("cpu"))
    for batch in inputs:
        products.add(batch)
    direct = (inputs.double().flatten(0, 1) @ errors.double().t()).square().sum()
    assert output_energy(errors, products.matrix()) == pytest.approx(float(direct), rel=1e-5)


@pytest.mark.parametrize("duo_scaling", [True, False, "both"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_choice_is_llm_compressors(family: str, duo_scaling: bool | str) -> None:
    batches = token_batches(SEARCH_SEQUENCES, 6)
    library = scale(made_model(family), batches, library_search, duo_scaling)
    ours = scale(
        made_model(family), batches, lambda: gram_search(SEARCH_SEQUENCES, clips=False), duo_scaling
    )
    unscaled = dict(made_model(family).named_parameters())
    for name, weight in weights_of(library).items():
        torch.testing.assert_close(ours[name], weight, rtol=1e-4, atol=1e-6)
        assert not torch.equal(weight, unscaled[name])


@pytest.mark.parametrize("weights", SCHEMES)
def test_the_choice_is_the_same_for_every_scheme(weights: str) -> None:
    batches = token_batches(8, 4)
    library = scale(made_model("llama", SCHEMES[weights]), batches, library_search)
    ours = scale(
        made_model("llama", SCHEMES[weights]),
        batches,
        lambda: gram_search(SEARCH_SEQUENCES, clips=False),
    )
    for name, weight in weights_of(library).items():
        torch.testing.assert_close(ours[name], weight, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_many_sequences_give_the_same_error(family: str) -> None:
    batches = token_batches(40, 8, length=48)
    errors = []
    for patches in (library_search, lambda: gram_search(SEARCH_SEQUENCES, clips=False)):
        model = made_model(family)
        scale(model, batches, patches)
        errors.append(_layer_error(made_model(family), model, batches))
    assert errors[1] <= 1.1 * errors[0]  # unscaled it is 1.5 times as large


def _layer_error(original: Any, model: Any, batches: list[torch.Tensor]) -> float:
    """The mean relative squared error of what a layer adds to its input."""
    layers = [module for name, module in model.named_modules() if name.endswith("_proj")]
    with minmax_observers(layers, model):
        values = rounded({layer: layer.weight.data.clone() for layer in layers})
    for layer, value in values.items():
        layer.weight.data = value
    samples = torch.cat(batches).tolist()
    with DisableQuantization(original), DisableQuantization(model):
        errors = [error for (error,) in layer_errors(original, [model], samples)]
    return sum(errors) / len(errors)


# ---- attention -----------------------------------------------------------------------------


@pytest.mark.parametrize("search", ["gram", "llmcompressor"])
@pytest.mark.parametrize("family", FAMILIES)
def test_parents_run_with_the_attention_of_the_recording(family: str, search: str) -> None:
    """Under SDPA there is no mask, and eager attention without a mask would look ahead."""
    model = made_model(family)
    masks: list[object] = []
    outputs: list[torch.Tensor] = []

    def note(_module: Module, _args: object, kwargs: dict[str, Any], output: Any) -> None:
        masks.append(kwargs.get("attention_mask"))
        outputs.append(output[0])

    model.model.layers[0].self_attn.register_forward_hook(note, with_kwargs=True)
    patches = (
        library_search
        if search == "llmcompressor"
        else lambda: gram_search(SEARCH_SEQUENCES, clips=False)
    )
    scale(model, token_batches(4, 4), patches, attention="sdpa")
    recorded, first_of_search = outputs[:2]
    assert masks[:2] == [None, None]
    torch.testing.assert_close(first_of_search, recorded)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_no_more_inputs_are_kept_than_the_sample(
    family: str, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Single sequences of many batches, whether or not there is a mask."""
    kept: list[int] = []
    add = Sample.add

    def noting(sample: Sample, values: dict[str, Any]) -> None:
        add(sample, values)
        kept.append(sample.sequences)

    def refuse(*_: object) -> None:
        raise AssertionError("llm-compressor's cache takes a batch")

    monkeypatch.setattr(Sample, "add", noting)
    monkeypatch.setattr(awq_search.IntermediatesCache, "append", refuse)
    batches = token_batches(40, 8)
    scale(
        made_model(family),
        batches,
        lambda: gram_search(SEARCH_SEQUENCES, clips=False),
        attention=attention,
    )
    assert max(kept) == SEARCH_SEQUENCES


# ---- layers without tokens, and NaN --------------------------------------------------------


class Expert(Module):
    """Two linear layers; the mapping scales what lies between them."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = Linear(GROUP, GROUP), Linear(GROUP, GROUP)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(inputs))


@pytest.mark.parametrize(
    "search", [library_search, lambda: gram_search(SEARCH_SEQUENCES, clips=True)]
)
@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([torch.zeros(0, GROUP)], "no activations found to scale"),
        ([torch.ones(4, GROUP), torch.full((4, GROUP), torch.nan)], "NaN or inf outputs found"),
        ([], None),
    ],
)
def test_a_layer_is_skipped_as_by_llm_compressor(
    search: Search, inputs: list[torch.Tensor], message: str | None
) -> None:
    torch.manual_seed(0)
    model = Expert()
    quantize_linears(model, INT4)
    weight = model.down.weight.detach().clone()
    modifier = AWQModifier(
        mappings=[AWQMapping("re:up$", ["re:down$"])], n_grid=GRID, offload_device=None
    )
    messages: list[str] = []
    sink = logger.add(messages.append, level="INFO")
    with (
        search(),
        patch_attr(awq, "calibration_forward_context", contextlib.nullcontext),  # it needs a head
        torch.no_grad(),
        DisableQuantization(model),
    ):
        modifier._set_resolved_mappings(model)
        modifier._setup_activation_cache_hooks()
        for batch in inputs:
            model(batch)
        modifier._apply_smoothing(model)
        modifier.remove_hooks()
    logger.remove(sink)
    assert torch.equal(model.down.weight, weight)
    assert modifier._error_metrics == []
    found = [text for text in messages if "Skipping smooth_layer" in text]
    assert len(found) == (message is not None)
    assert message is None or message in found[0]


# ---- what we hook into ---------------------------------------------------------------------

METHODS = {
    "_setup_activation_cache_hooks": ["self"],
    "_apply_smoothing": ["self", "model"],
    "_run_samples": ["self", "module"],
    "_compute_best_scale": ["self", "mapping", "fp16_outputs", "orig_layer_weights"],
    "_set_resolved_mappings": ["self", "model"],
    "_get_grid_search_params": ["self"],
    "_compute_layer_means": ["layers"],
    "register_hook": ["self", "target", "hook", "hook_type", "kwargs"],
}
STATE = ("_resolved_mappings", "_parent_args_cache", "_smooth_activation_stats", "_error_metrics")


def test_llm_compressor_still_has_what_we_hook_into() -> None:
    for name, parameters in METHODS.items():
        assert list(inspect.signature(getattr(AWQModifier, name)).parameters) == parameters, name
    assert set(STATE) <= set(AWQModifier.__private_attributes__)
    apply = inspect.unwrap(AWQModifier._apply_smoothing).__code__
    used = {"_run_samples", "_compute_best_scale", "calibration_forward_context", *STATE[1:3]}
    assert used <= set(apply.co_names)
    assert "_apply_smoothing" in AWQModifier.on_sequential_epoch_end.__code__.co_names
    assert "_setup_activation_cache_hooks" in AWQModifier.on_calibration_start.__code__.co_names
    fields = inspect.signature(ResolvedMapping).parameters
    assert {
        "smooth_name", "balance_layers", "balance_names", "parent", "parent_name",
        "activation_hook_target",
    } <= set(fields)  # fmt: skip


def test_the_patches_are_taken_back() -> None:
    before = {name: getattr(AWQModifier, name) for name in METHODS}
    with gram_search(SEARCH_SEQUENCES, clips=True), library_search():
        assert AWQModifier._run_samples is not before["_run_samples"]
    assert {name: getattr(AWQModifier, name) for name in METHODS} == before
    assert awq.calibration_forward_context is calibration_forward_context


# ---- options -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["recipe.awq.search=grm"], "recipe.awq.search=grm: choose one of gram, llmcompressor"),
        (
            ["recipe.awq.search=llmcompressor", "recipe.awq.clip=true"],
            "recipe.awq.clip=true: works only with recipe.awq.search=gram",
        ),
        (
            ["recipe=fp8_block", "recipe.steps=[awq,rounding]", "recipe.awq.clip=true"],
            "awq.clip needs a scale for each channel or group, and the weights' strategy is block",
        ),
        (
            ["recipe.file=x.yaml", "recipe.awq.clip=true"],
            "recipe.awq.clip: works only with recipe=NAME",
        ),
    ],
)
def test_options_are_refused(options: list[str], message: str) -> None:
    given = options if options[0].startswith(("recipe=", "recipe.f")) else ["recipe=w4a16_awq"]
    with pytest.raises(Exception) as error:
        quantize_config("model=tiny", *dict.fromkeys([*given, *options]))
    assert message in str(error.value)


def test_a_recipe_file_may_be_given_with_a_search() -> None:
    recipe = quantize_config("recipe.file=x.yaml", "recipe.awq.search=llmcompressor").recipe
    assert recipe.options_of(STEP).search == "llmcompressor"
    assert quantize_config("recipe.file=x.yaml").recipe.options_of(STEP).search == "gram"


def test_the_cost_follows_the_search() -> None:
    gram, library = (
        quantize_config("recipe=w4a16_awq", f"recipe.awq.search={search}").recipe
        for search in ("gram", "llmcompressor")
    )
    assert STEP.passes_for(gram, 256) < 5 < STEP.passes_for(gram, 16) < 24
    assert STEP.passes_for(library, 256) == STEP.passes_for(library, 16) == 22
