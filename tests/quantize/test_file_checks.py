"""An llm-compressor recipe file passes the same checks as our recipes, before any weight."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from llmcompressor.recipe import Recipe

from conf import sources
from conf.errors import QuantlineError
from conf.schema.commands import QuantizeConfig
from conf.schema.model import ModelConfig
from quantize import preflight as module
from quantize.modifiers import modifiers, runnable
from quantize.preflight import preflight
from quantize.preflight_plan import Preflight
from quantize.recipe_file import from_file
from quantize.steps.base.step import steps_named
from tests.conftest import quantize_config
from tests.quantize.recipe_mutations import mutations

Tiny = tuple[ModelConfig, Path]
W8A8 = "scheme: W8A8, targets: [Linear], ignore: [lm_head]"
MASK = "sparsity: 0.5, mask_structure: '2:4'"
QKV = "['re:.*q_proj', 're:.*k_proj', 're:.*v_proj']"
SMOOTH = "SmoothQuantModifier: {smoothing_strength: 0.5}"
# As a safe loader writes what must not run; the name of a folder goes into the braces.
CODE = "GPTQModifier: !!python/object/apply:os.mkdir [{}]"
# A mutation beyond this number is for a person with time: QUANTLINE_MUTATIONS=1000.
MUTATIONS = int(os.environ.get("QUANTLINE_MUTATIONS", "80"))


def stage(*lines: str) -> str:
    return "a_stage:\n  b_modifiers:\n" + "".join(f"    {line}\n" for line in lines)


def gptq(options: str = "") -> str:
    return f"GPTQModifier: {{{W8A8}{options}}}"


def group(weights: str, activations: str = "null") -> str:
    scheme = f"{{targets: [Linear], weights: {weights}, input_activations: {activations}}}"
    return f"GPTQModifier: {{ignore: [lm_head], config_groups: {{group_0: {scheme}}}}}"


def smooth(mappings: str) -> str:
    return f"SmoothQuantModifier: {{mappings: {mappings}}}"


@pytest.fixture(scope="module")
def base(tiny: Tiny) -> Iterator[QuantizeConfig]:
    """A config, and one empty model for all tests: none of the checks changes it."""
    model = module.empty_model(tiny[1], False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "empty_model", lambda *_: model)
        yield quantize_config("model=tiny")


@pytest.fixture
def config(base: QuantizeConfig, tmp_path: Path) -> QuantizeConfig:
    return replace(base, recipe=replace(base.recipe, file=str(tmp_path / "theirs.yaml")))


def check(text: str, config: QuantizeConfig, tiny: Tiny) -> Preflight:
    Path(str(config.recipe.file)).write_text(text, encoding="utf-8")
    recipe, steps = from_file(config.recipe)
    return preflight(tiny[1], replace(config, recipe=recipe), steps)


REFUSED = [
    (stage(gptq(", dampening_frac: 7")), ":3: .*dampening_frac: 7: must be at least 0 and at mo"),
    (stage(gptq(", dampening_frac: .nan")), "dampening_frac: nan: must be"),
    (stage(gptq(", block_size: true")), "block_size: True: must be a whole number"),
    (stage(gptq(", block_size: -1")), "block_size: -1: must be at least 1 and at most 65536"),
    (stage(gptq(", requires_calibration_data: false")), "requires_calibration_data: False: must"),
    (stage(gptq(", initialized_: true")), "initialized_: option: there is no 'initialized_'"),
    (stage(gptq(", bypass_divisibility_checks: true")), "bypass_divisibility_checks: True"),
    (stage(gptq(", actorder: group")), "actorder: 'group': must be 'static' or 'weight'"),
    (stage(gptq(", weight_observer: mes")), "no observer 'mes'. Did you mean mse?"),
    (stage(gptq(", start: 3")), "start: 3: cannot be used here; leave it out"),
    (stage("GPTQModifier: {}"), ":3: a_stage.b_modifiers.GPTQModifier: is empty"),
    (stage("GPTQModifier: {ignore: [lm_head]}"), "quantizes no weights"),
    (stage("GPTQModifier: {scheme: UNQUANTIZED, ignore: [lm_head]}"), "quantizes no weights"),
    (stage("GPTQModifier: {scheme: {W8A9: [Linear]}}"), "no 'W8A9'. Did you mean W8A8?"),
    (stage("GPTQModifier: [W8A8]"), "must be a mapping of options to values"),
    (stage("GPTQModifier: {scheme: W4A8, ignore: [lm_head]}"), "num_bits: 4: int weights with qu"),
    (
        stage("GPTQModifier: {scheme: MXFP4, ignore: [lm_head]}"),
        "e8m0: gptq does not make such scales",
    ),
    (stage(gptq(), gptq()), ":4: the key 'GPTQModifier' appears twice, first in line 3"),
    (stage(group("{num_bits: 5, type: float}")), "floats have 8 bits"),
    (stage(group("{num_bits: 99}")), "num_bits: 99: must be at least 2 and at most 8"),
    (stage(group("{num_bitz: 8}")), "num_bitz: there is no such option. Did you mean num_bits?"),
    (stage(group("{strategy: group, group_size: 7}")), "group_size: 7: weight-only kernels take"),
    (stage(group("{strategy: group}")), "group_size"),
    (stage(group("{strategy: chanel}")), "strategy: 'chanel': must be"),
    (stage(group("{strategy: channel}", "{num_bits: 3}")), "input_activations.num_bits: 3"),
    (stage(group("{strategy: channel}", "{strategy: block}")), "theirs.yaml"),
    (stage(group("{type: float, strategy: channel, symmetric: false}")), "symmetric: false: float"),
    (stage(group("{strategy: group, group_size: 96}")), "group size 96 does not divide .*q_proj"),
    (stage(group("null", "{strategy: token, dynamic: true}")), "quantizes no weights"),
    (stage(gptq(", kv_cache_scheme: {num_bits: 4, type: int}")), "KV cache is FP8"),
    (stage(gptq(), SMOOTH), "the last step has to round, and no other"),
    (stage(SMOOTH), "no step rounds"),
    (stage("AWQModifier: {n_grid: 5}"), "no step rounds"),
    (stage("AWQModifier: {n_grid: 5}", SMOOTH, gptq()), "undoes awq; the order is smoothquant, aw"),
    (stage(SMOOTH) + "  c_modifiers:\n    " + SMOOTH + "\n", "smoothquant is named twice"),
    (stage(gptq()) + "  c_modifiers:\n    " + gptq() + "\n", "is rounded by .* too"),
    (stage(f"SparseGPTModifier: {{{MASK}}}"), "lm_head is the embedding"),
    (stage("SparseGPTModifier: {sparsity: 0.5}"), "mask_structure: is needed"),
    (stage("SparseGPTModifier: {sparsity: 0.6, mask_structure: '2:4'}"), "0.6: must be 0.5"),
    (stage("SparseGPTModifier: {sparsity: 0.5, mask_structure: '4:8'}"), "'4:8': must be '2:4'"),
    (stage(f"SparseGPTModifier: {{{MASK}, block_size: 6}}"), "a multiple of 4"),
    (stage("GPTQModifier: {scheme: W8A8, ignore: ['re:.*']}"), "no linear layer of Qwen3"),
    (stage("GPTQModifier: {scheme: W8A8, targets: [Qwen3RMSNorm]}"), "matches no linear layer"),
    (stage("GPTQModifier: {scheme: W8A8, targets: [Linaer]}"), "Did you mean Linear"),
    (stage("GPTQModifier: {scheme: W8A8, targets: ['re:(']}"), "is no regular expression"),
    (stage("GPTQModifier: {scheme: W8A8, targets: []}"), "targets"),
    (stage("GPTQModifier: {scheme: W8A8, ignore: lm_head}"), "ignore: 'lm_head'"),
    (stage(smooth("[]"), gptq()), "mappings: "),
    (stage(smooth("[5]"), gptq()), "must be \\[\\[layers to balance\\], layer to smooth\\]"),
    (stage(smooth("[[['re:.*q_porj'], 're:.*input_layernorm']]"), gptq()), "does not fit Qwen3"),
    (stage(smooth("[[['re:.*q_proj'], 're:.*input_layernorm']]"), gptq()), "differs in .*k_proj"),
    (stage(smooth("[[['re:.*o_proj'], 're:.*v_proj']]"), gptq()), "gives 128 values and .* 256"),
    (stage(smooth(f"[[{QKV}, 'model.layers.0.input_layernorm']]"), gptq()), "does not fit Qwen3"),
    ("- a\n", "a mapping of stages to modifiers is needed"),
    ("a_stage:\n\tb: 1\n", ":2: no YAML"),
    ("a_stage: [1]\n", "must be a mapping"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_what_is_wrong_in_a_file_is_named(
    text: str, message: str, config: QuantizeConfig, tiny: Tiny
) -> None:
    with pytest.raises(QuantlineError, match=message) as error:
        check(text, config, tiny)
    assert error.value.exit_code == 2


def test_no_code_of_a_file_runs(config: QuantizeConfig, tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(QuantlineError, match="could not determine a constructor"):
        check(stage(CODE.format(tmp_path / "ran")), config, tiny)
    assert not (tmp_path / "ran").exists()


def test_an_expression_that_never_ends_is_stopped(
    config: QuantizeConfig, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quantize.fit.PATTERN_SECONDS", 1)
    text = stage("GPTQModifier: {scheme: W8A8, targets: ['re:(([a-z0-9._]+)+)+X$']}")
    with pytest.raises(QuantlineError, match="takes more than 1 s on the names of the modules"):
        check(text, config, tiny)


ACCEPTED = [
    stage(gptq(", dampening_frac: 1e-2, block_size: '64', actorder: weight")),
    stage(gptq(", weight_observer: mse, batched_quantization: 4")),
    stage("GPTQModifier: {scheme: w8a8, targets: Linear, ignore: [lm_head]}"),
    stage("QuantizationModifier: {scheme: NVFP4, ignore: [lm_head]}"),
    stage("QuantizationModifier: {scheme: {W8A8: ['re:.*mlp.*'], FP8: ['re:.*self_attn.*']}}"),
    stage(gptq(", kv_cache_scheme: {num_bits: 8, type: float, strategy: tensor}")),
    stage(group("{num_bits: 4, group_size: -1}")),
    stage(SMOOTH) + "c_stage:\n  d_modifiers:\n    " + gptq() + "\n",
    stage(smooth(f"[!!python/tuple [{QKV}, 're:.*input_layernorm']]"), gptq()),
    stage(f"SparseGPTModifier: {{{MASK}, ignore: [lm_head]}}", SMOOTH, gptq()),
    stage("GPTQModifier: {scheme: W8A16, targets: ['re:.*mlp.*_proj$']}")
    + "  c_modifiers:\n"
    + "    QuantizationModifier: {scheme: W4A16, targets: ['re:.*self_attn.*_proj$']}\n",
]


@pytest.mark.parametrize("text", ACCEPTED)
def test_what_is_odd_but_right_is_taken(text: str, config: QuantizeConfig, tiny: Tiny) -> None:
    assert check(text, config, tiny).modules == 14


def has_modifiers_of_llm_compressor(name: str) -> bool:
    steps = steps_named(quantize_config(f"recipe={name}").recipe.steps)
    return all(step.modifier_name for step in steps)


OF_LLM_COMPRESSOR = [
    name
    for name in sources.choices("recipe", [sources.RECIPES])
    if has_modifiers_of_llm_compressor(name)
]


@pytest.mark.parametrize("name", OF_LLM_COMPRESSOR)
def test_every_recipe_of_ours_is_taken_as_a_file(
    name: str, config: QuantizeConfig, tiny: Tiny
) -> None:
    """As llm-compressor itself writes it down."""
    ours = quantize_config("model=tiny", f"recipe={name}").recipe
    steps = modifiers(ours)
    for step in steps:
        if hasattr(step, "offload_device"):
            step.offload_device = None  # what a run leaves there; a sentinel cannot be written
    found = check(Recipe.from_modifiers(steps).yaml(), config, tiny)
    assert found.recipe.steps == ours.steps
    assert found.modules == 14


def test_each_modifier_keeps_its_own_modules(config: QuantizeConfig, tiny: Tiny) -> None:
    pruned = f"SparseGPTModifier: {{{MASK}, targets: ['re:.*mlp.*'], ignore: ['re:.*up_proj$']}}"
    text = stage(pruned, gptq())
    found = check(text, config, tiny)
    assert found.modules == 14
    assert found.recipe.targets == ["re:.*mlp.*"]  # what the proof of the mask looks at
    assert found.recipe.ignore == ["re:.*up_proj$"]
    described, steps = from_file(config.recipe)
    assert runnable(described, steps)[0].ignore == ["re:.*up_proj$", r"re:.*up_proj\.?$"]
    assert steps[1].ignore == ["lm_head"]


def test_mutated_files_are_refused_by_name_or_run(config: QuantizeConfig, tiny: Tiny) -> None:
    """No mutation ends in anything but exit 2, and each is named by file or key."""
    plain = [text.replace("!!python/tuple ", "") for text in ACCEPTED]
    texts = [yaml.safe_dump(yaml.safe_load(text), sort_keys=False) for text in plain]
    outcomes = [outcome(text, config, tiny) for text in mutations(texts, MUTATIONS, seed=17)]
    refused = [error for error in outcomes if error is not None]
    assert {error.exit_code for error in refused} == {2}
    unnamed = [str(error) for error in refused if "theirs.yaml" not in str(error)]
    assert [words for words in unnamed if "does not divide" not in words] == []
    assert MUTATIONS / 2 < len(refused) < MUTATIONS


def outcome(text: str, config: QuantizeConfig, tiny: Tiny) -> QuantlineError | None:
    """The refusal of a text, or nothing where it is taken."""
    try:
        check(text, config, tiny)
    except QuantlineError as error:
        return error
    return None
