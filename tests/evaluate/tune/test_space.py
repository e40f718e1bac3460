"""The table of settings, what applies where, and the way from settings to options and back."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from conf.errors import QuantlineError
from conf.schema.kernels import KernelsConfig
from conf.schema.load import EngineConfig, ScenarioConfig
from evaluate.measure.targets import Target
from evaluate.plan import Inspected
from evaluate.tune.optimizer import Optimizer
from evaluate.tune.settings import MOST_CAPTURED, NAMES, TABLE, Limit, Need
from evaluate.tune.space import (
    DEFAULT,
    Situation,
    Space,
    excluded_settings,
    space_of,
    text_of,
    workload_sizes,
)
from evaluate.tune.target import TunedCheckpoint, situation_of
from serve.engine.launch import known_options
from serve.kernels.settings import recorded, with_kernels
from serve.tensors import Tensor
from tests.conftest import evaluate_config
from tests.evaluate.test_plan import CONFIG

FP8, INT8 = (
    {
        "quant_method": "compressed-tensors",
        "format": f"{number}-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 8, "type": number, "strategy": "channel"},
                "input_activations": {
                    "num_bits": 8,
                    "type": number,
                    "strategy": "token",
                    "dynamic": True,
                },
            }
        },
    }
    for number in ("float", "int")
)
ANYTHING = Situation(frozenset(Need))
MANY = ScenarioConfig(batch=64, input_tokens=256, output_tokens=128)


PASSES_IN_TABLE = ("enable_qk_norm_rope_fusion", "fuse_norm_quant", "fuse_act_quant")
COMPILED = {MOST_CAPTURED, "cudagraph_mode", "custom_ops", *PASSES_IN_TABLE}


def everything() -> Space:
    return space_of(None, ANYTHING, judges=True)


def recorded_of(engine: EngineConfig) -> dict[str, Any]:
    """The options of a row that was measured on a GPU."""
    return dict(recorded(with_kernels(engine.options, engine.kernels)))


def test_every_setting_is_an_option_of_the_installed_engine() -> None:
    assert set(excluded_settings(EngineConfig(), known_options())) == set()
    assert excluded_settings(EngineConfig(), [])["max_num_seqs"].startswith("is no option")
    assert len(set(NAMES)) == len(TABLE)


def test_an_engine_gets_the_settings_beside_the_users_own_options() -> None:
    base = EngineConfig(options={"seed": 1, "compilation_config": {"mode": 3}})
    assignment = everything().assignment(
        {"kernels": "vllm", "fuse_norm_quant": "true", "custom_ops": "all", "max_num_seqs": "64"}
    )
    engine = everything().engine(base, assignment)
    assert engine.kernels.families == ["vllm"]
    assert engine.options == {
        "seed": 1,
        "max_num_seqs": 64,
        "compilation_config": {
            "mode": 3,
            "custom_ops": ["all"],
            "pass_config": {"fuse_norm_quant": True},
        },
    }
    assert base.options == {"seed": 1, "compilation_config": {"mode": 3}}
    assert everything().assignment_of(recorded_of(engine)) == assignment


@pytest.mark.parametrize("setting", TABLE, ids=NAMES)
def test_every_value_is_found_again_in_recorded_options(setting) -> None:
    space = space_of(NAMES, ANYTHING, judges=True)
    for label in setting.values:
        assignment = ((setting.name, label),)
        engine = space.engine(EngineConfig(), assignment)
        assert space.assignment_of(recorded_of(engine)) == assignment
    assert space.assignment_of(recorded_of(EngineConfig())) == DEFAULT


def test_settings_that_change_answers_need_a_judge() -> None:
    unjudged = space_of(None, ANYTHING, judges=False)
    short = {"enable_chunked_prefill"}
    assert {"kv_cache_dtype", "speculation"} == set(unjudged.left_out) - short
    assert set(everything().left_out) == short
    assert everything().changes_answers((("kv_cache_dtype", "fp8"),))
    assert not everything().changes_answers((("max_num_seqs", "64"),))
    with pytest.raises(QuantlineError, match=r"settings=speculation: changes .*accuracy=quick"):
        space_of(["speculation"], ANYTHING, judges=False)


def test_a_setting_that_limits_the_context_is_searched_only_where_it_is_named() -> None:
    name = "enable_chunked_prefill"
    assert "max_model_len" in everything().left_out[name]
    assert name not in {setting.name for setting in everything().settings}
    named = space_of([name], ANYTHING, judges=False)
    assert named.fixes_context(((name, "false"),))


def test_values_beyond_the_workload_have_no_effect() -> None:
    space = space_of(None, Situation(frozenset(), workload_sizes(MANY)), judges=False)
    values = {setting.name: set(setting.values) for setting in space.settings}
    assert values["max_num_seqs"] == {"64", "32", "16"}
    assert values["max_num_batched_tokens"] == {"16384", "8192", "4096", "2048"}
    single = ScenarioConfig(batch=1, input_tokens=256, output_tokens=512)
    alone = space_of(None, Situation(frozenset(Need), workload_sizes(single)), judges=False)
    assert "at most 1 requests at once" in alone.left_out["max_num_seqs"]
    arriving = ScenarioConfig(
        rate=4, requests=8, input_tokens=256, output_tokens=8, ttft_ms=1, tpot_ms=1
    )
    assert workload_sizes(arriving) == {Limit.REQUESTS: None, Limit.STEP_TOKENS: None}
    assert "512" in space_of(["max_num_seqs"], ANYTHING, False).setting("max_num_seqs").values


def test_what_the_user_fixes_is_not_searched() -> None:
    engine = EngineConfig(
        options={"max_num_seqs": 8, "compilation_config": {"pass_config": {"x": 1}}},
        kernels=KernelsConfig(["vllm"]),
    )
    fixed = excluded_settings(engine, known_options())
    assert set(fixed) == {"max_num_seqs", "kernels"}
    with pytest.raises(QuantlineError, match="settings=max_num_seqs: is fixed by the command"):
        space_of(["max_num_seqs"], Situation(frozenset(), excluded=fixed), judges=False)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"compilation_config": {"max_cudagraph_capture_size": 512}}, {MOST_CAPTURED}),
        ({"compilation_config": {"cudagraph_capture_sizes": [1, 2]}}, {MOST_CAPTURED}),
        ({"cudagraph_capture_sizes": [1, 2]}, {MOST_CAPTURED}),
        ({"spec_method": "ngram"}, {"speculation"}),
        ({"spec_model": "/models/draft"}, {"speculation"}),
        ({"kernel_config": '{"moe_backend": "triton"}'}, {"moe_backend", "linear_backend"}),
        ({"compilation_config": 3}, COMPILED),
        ({"compilation_config": '{"mode": 3}'}, COMPILED),
        ({"compilation_config": {"pass_config": "{}"}}, {*PASSES_IN_TABLE}),
    ],
)
def test_what_the_user_fixes_in_another_place_is_not_searched(
    options: dict[str, Any], names: set[str]
) -> None:
    """vLLM refuses two values, or the user's own one would be lost."""
    fixed = excluded_settings(EngineConfig(options=options), known_options())
    reason = "is fixed by the command line"
    assert {name for name, text in fixed.items() if text == reason} == names


@pytest.mark.parametrize(
    ("names", "met", "expected"),
    [
        (["max_num_seq"], Need, "Did you mean max_num_seqs?"),
        (["kernels"], [], "settings=kernels: works only on a GPU"),
        (["linear_backend"], [Need.GPU], "settings=linear_backend: works only for a quantized"),
        (["custom_ops"], [Need.GPU], "engine.enforce_eager is on"),
    ],
)
def test_a_setting_that_cannot_be_searched_is_named(names, met, expected) -> None:
    with pytest.raises(QuantlineError) as raised:
        space_of(names, Situation(frozenset(met)), judges=True)
    assert expected in str(raised.value)


def test_an_empty_space_says_why() -> None:
    fixed = {"max_num_seqs": "is fixed", "max_num_batched_tokens": "is fixed"}
    fixed["enable_chunked_prefill"] = "is fixed"
    with pytest.raises(QuantlineError, match=r"nothing to search here .*kernels.*only on a GPU"):
        space_of(None, Situation(frozenset(), excluded=fixed), judges=True)


def test_an_assignment_reads_as_options() -> None:
    assert text_of(DEFAULT) == "default settings"
    assert text_of((("a", "1"), ("b", "true"))) == "a=1, b=true"


def test_kernels_that_overlap_need_compiled_graphs() -> None:
    eager = space_of(None, Situation(frozenset(Need) - {Need.COMPILING}), judges=True)
    assert list(eager.setting("kernels").values) == ["vllm"]
    names = ["overlap", "one_token_overlap", "vllm"]
    assert list(everything().setting("kernels").values) == names


@pytest.mark.parametrize(("batch", "acts"), [(1, True), (2, False), (64, False)])
def test_steps_of_one_token_are_tuned_only_where_one_request_runs(batch: int, acts: bool) -> None:
    scenario = ScenarioConfig(batch=batch, input_tokens=256, output_tokens=128)
    situation = Situation(frozenset(Need), workload_sizes(scenario))
    values = space_of(None, situation, judges=False).setting("kernels").values
    assert ("one_token_overlap" in values) == acts
    assert {"overlap", "vllm"} <= set(values)


BACKENDS = ["kernels", "linear_backend", "async_scheduling"]
BACKENDS_IN_TABLE = [name for name in NAMES if name in BACKENDS]


def test_an_explicit_backend_replaces_our_kernels() -> None:
    """Their combinations are no trials of their own, and the number of assignments knows that."""
    space = space_of(BACKENDS, ANYTHING, judges=False)
    both = space.assignment({"kernels": "overlap", "linear_backend": "marlin"})
    assert both == (("linear_backend", "marlin"),)
    labels = [["default", *setting.values] for setting in space.settings]
    every = {
        space.assignment(dict(zip(BACKENDS_IN_TABLE, chosen, strict=True)))
        for chosen in itertools.product(*labels)
    }
    assert space.size == len(every) == (3 + 3 + 1) * 2


def test_all_assignments_are_proposed_once() -> None:
    optimizer = Optimizer(space_of(BACKENDS, ANYTHING, judges=False), seed=0)
    proposed = []
    while (assignment := optimizer.propose()) is not None:
        proposed.append(assignment)
        optimizer.learn(assignment, float(len(proposed)))
    assert len(proposed) == len(set(proposed)) == 14


def test_what_helped_is_joined_with_the_faster_of_two_that_exclude_each_other() -> None:
    optimizer = Optimizer(space_of(BACKENDS, ANYTHING, judges=False), seed=0)
    times = {"default": 1.0, "kernels": 0.8, "linear_backend": 0.9, "async_scheduling": 0.95}
    for _ in times:
        assignment = optimizer.propose()
        assert assignment is not None
        optimizer.learn(assignment, times[assignment[0][0] if assignment else "default"])
    joined = optimizer.propose()
    assert joined == (("kernels", "overlap"), ("async_scheduling", "false"))


@pytest.mark.parametrize(
    ("engine", "name", "reason"),
    [
        (
            EngineConfig(options={"linear_backend": "marlin"}),
            "kernels",
            "is not searched beside engine.linear_backend",
        ),
        (
            EngineConfig(kernels=KernelsConfig(["weight_only"])),
            "linear_backend",
            "would leave out engine.kernels",
        ),
        (
            EngineConfig(options={"kernel_config": {"linear_backend": "marlin"}}),
            "linear_backend",
            "is fixed by the command line",
        ),
        (
            EngineConfig(options={"attention_config": {"backend": "FLASHINFER"}}),
            "attention_backend",
            "is fixed by the command line",
        ),
    ],
)
def test_a_backend_that_the_user_chose_is_kept(
    engine: EngineConfig, name: str, reason: str
) -> None:
    assert excluded_settings(engine, known_options())[name] == reason


def test_backends_are_tried_for_the_formats_that_have_them() -> None:
    met = frozenset({Need.GPU, Need.COMPILING, Need.QUANTIZED})
    int8 = space_of(None, Situation(met), judges=False)
    assert "marlin works only for INT weights" in int8.left_out["linear_backend"]
    assert "mixture of experts" in int8.left_out["moe_backend"]
    fp8 = space_of(None, Situation(met | {Need.FP8, Need.EXPERTS}), judges=False)
    assert list(fp8.setting("linear_backend").values) == ["cutlass", "torch"]
    assert "cutlass" in fp8.setting("moe_backend").values
    int4 = space_of(None, Situation(met | {Need.WEIGHT_ONLY, Need.EXPERTS}), judges=False)
    assert list(int4.setting("linear_backend").values) == ["marlin"]
    assert "cutlass" not in int4.setting("moe_backend").values


@pytest.mark.parametrize(
    ("quantization", "tensor", "needs"),
    [
        (None, "mlp.up_proj", set()),
        (None, "mlp.experts.0.up_proj", {Need.EXPERTS}),
        (FP8, "mlp.up_proj", {Need.QUANTIZED, Need.FP8}),
        ({"quant_method": "gptq", "bits": 4}, "mlp.up_proj", {Need.QUANTIZED, Need.WEIGHT_ONLY}),
        ({"quant_method": "fp8"}, "mlp.up_proj", {Need.QUANTIZED, Need.FP8}),
        (INT8, "mlp.up_proj", {Need.QUANTIZED}),
    ],
)
def test_the_checkpoint_decides_which_backends_apply(
    quantization: dict[str, Any] | None, tensor: str, needs: set[Need]
) -> None:
    config = CONFIG | ({"quantization_config": quantization} if quantization else {})
    tensors = {f"model.layers.0.{tensor}.weight": Tensor("BF16", (64, 64))}
    inspected = Inspected(Target("w8", Path("/m")), Path("/m"), config, "5ha", None, tensors)
    tuned = TunedCheckpoint(evaluate_config("model=tiny"), Path("/m"), inspected)
    asked = {Need.QUANTIZED, Need.EXPERTS, Need.FP8, Need.WEIGHT_ONLY}
    assert situation_of(tuned, "interactive").met & asked == needs
