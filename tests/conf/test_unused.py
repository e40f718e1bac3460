"""Given options that have no effect are refused or named, for every command that has such rules."""

import shlex
from pathlib import Path

import pytest

from conf.compose import Command, compose
from conf.errors import QuantlineError
from conf.explain import check_key
from conf.help import options
from conf.unused.rule import (
    UnusedOptions,
    check_unused,
    given_key,
    unused_in_all,
    unused_options,
)
from evaluate.command import COMMAND as EVALUATE
from evaluate.report.command import COMMAND as REPORT
from evaluate.report.command import with_answer_option
from evaluate.traffic import COMMAND as TRAFFIC
from evaluate.tune.command import COMMAND as TUNE
from quantize.command import COMMAND as QUANTIZE
from serve.command import COMMAND as SERVE
from tests.conf.launch.sweeps import SweepRun
from tests.conftest import Run
from tests.test_readme import OURS

COMMANDS = {
    "evaluate": EVALUATE,
    "evaluate.report": REPORT,
    "evaluate.traffic": TRAFFIC,
    "evaluate.tune": TUNE,
    "quantize": QUANTIZE,
    "serve": SERVE,
}
# Constructors of the options refuse these themselves, whoever gives them.
REFUSED_BY_SCHEMA = ("launcher.", "recipes", "original", "engine.url", "bits", "min_rec", "mix")
MISTAKES = [
    (EVALUATE, "accuracy=quick accuracy.tasks=[mmlu]", "accuracy.tasks: works only with accuracy="),
    (EVALUATE, "accuracy.limit=100", "accuracy.limit: works only with accuracy=lm_eval or"),
    (EVALUATE, "accuracy.min_recovery=0.99", "accuracy.min_recovery: works only with accuracy="),
    (EVALUATE, "accuracy.seed=1", "accuracy.seed: works only with accuracy=quick, lm_eval"),
    (
        EVALUATE,
        "accuracy=sensitivity recipes=[w4a16_gptq] accuracy.min_recovery=0.9",
        "accuracy.min_recovery: works only with accuracy=quick, lm_eval or questions",
    ),
    (EVALUATE, "accuracy=lm_eval accuracy.tokens=512", "accuracy.tokens: works only with"),
    (EVALUATE, "accuracy=lm_eval scenario=base", "scenario: works only with accuracy=quick"),
    (
        EVALUATE,
        "accuracy=quick accuracy.text.path=our.txt",
        "accuracy.text.path: works only with accuracy.text.source=file",
    ),
    (
        EVALUATE,
        "scenario.interactive.requests=16",
        "scenario.interactive.requests: works only with a sustained workload",
    ),
    (EVALUATE, "traffic.rate=8", "traffic.rate: works only with scenario=traffic or"),
    (EVALUATE, "traffic=sharegpt", "traffic: works only with scenario=traffic or"),
    (EVALUATE, "scenario=traffic capacity.share=0.9", "capacity.share: works only with"),
    (
        EVALUATE,
        "scenario=capacity targets.ttft_ms=500 targets.tpot_ms=50 traffic.rate=8",
        "traffic.rate: works only with scenario=traffic; scenario=capacity searches it",
    ),
    (
        EVALUATE,
        "scenario=traffic traffic.arrivals=closed traffic.rate=8",
        "traffic.rate: works only with traffic.arrivals=poisson or bursty",
    ),
    (
        EVALUATE,
        "scenario=traffic traffic.input.distribution=fixed traffic.input.sigma=1",
        "traffic.input.sigma: works only with traffic.input.distribution=lognormal",
    ),
    (EVALUATE, "scenario=none accuracy=quick profile=true", "profile: works only with a scenario"),
    (EVALUATE, "engine=transformers engine.kernels=auto", "engine.kernels: works only with"),
    (
        EVALUATE,
        "engine=vllm_server engine.url=http://a:1 engine.kernels=vllm",
        "engine.kernels: works only with",
    ),
    (TUNE, "targets.tpot_ms=20", "targets.tpot_ms: works only with scenario=traffic"),
    (TUNE, "targets.min_recovery=0.99", "targets.min_recovery: works only with python -m evaluate"),
    (TUNE, "accuracy.tokens=512", "accuracy.tokens: works only with accuracy=quick"),
    (QUANTIZE, "calibration.path=our.txt", "calibration.path: works only with calibration=file"),
    (QUANTIZE, "calibration.id=ORG/NAME", "calibration.id: works only with a data set of the hub"),
    (
        QUANTIZE,
        "recipe=fp8_dynamic recipe.gptq.block_size=64",
        "recipe.gptq.block_size: works only with a recipe that has the step gptq",
    ),
    (SERVE, "prompt=Hello port=8124", "port: works only with a server; prompt= starts none"),
    (
        SERVE,
        "engine=vllm_server engine.url=http://a:1",
        "engine.url: works only with python -m evaluate",
    ),
    (REPORT, "answer=text out=there", "out: works only with files; answer= prints"),
]
WITHOUT_EFFECT = [
    (EVALUATE, "scenario=none accuracy=quick repeats=3 starts=2", "repeats, starts have no effect"),
    (EVALUATE, "accuracy=lm_eval repeats=3", "repeats has no effect: works only with a scenario"),
    (EVALUATE, "weights=random checkpoint_root=there", "checkpoint_root has no effect"),
    (EVALUATE, "engine=transformers engine.enforce_eager=true", "engine.enforce_eager has no"),
    (
        QUANTIZE,
        "recipe=fp8_dynamic calibration.samples=8 batch_size=4",
        "calibration.samples, batch_size have no effect: works only with a recipe that is",
    ),
    (QUANTIZE, "push_private=false", "push_private has no effect: works only with push=ORG/NAME"),
    (QUANTIZE, "model=qwen3-8b min_expert_tokens=9", "min_expert_tokens has no effect: works"),
    (QUANTIZE, "gpu.price_per_hour=3", "gpu.price_per_hour has no effect"),
    (SERVE, "prompt=Hello drain_s=5", "drain_s has no effect"),
    (SERVE, "checkpoint=there checkpoint_root=here", "checkpoint_root has no effect"),
]
WITH_EFFECT = [
    (EVALUATE, "accuracy=none scenario=interactive repeats=3"),
    (EVALUATE, "accuracy=lm_eval scenario=none"),
    (EVALUATE, "scenario=serving scenario.clients_1.requests=8"),
    (EVALUATE, "accuracy.tokens=16384"),  # the default asks for nothing
    (EVALUATE, "scenario=traffic traffic.path=ours.jsonl traffic.rate=8 traffic.turns=2"),
    (EVALUATE, "scenario=[interactive,traffic] traffic=sharegpt targets.tpot_ms=20"),
    (EVALUATE, "engine=vllm_server engine.kernels=vllm engine.max_num_seqs=8"),
    (QUANTIZE, "recipe=fp8_dynamic kv_cache=fp8 calibration.samples=8"),
    (QUANTIZE, "recipe.gptq.block_size=64 calibration.samples=8"),
    (QUANTIZE, "model=qwen3-30b-a3b min_expert_tokens=9"),
    (QUANTIZE, "calibration=file calibration.path=our.jsonl calibration.column=body"),
    (REPORT, "targets.tpot_ms=20 out=there"),
    (TRAFFIC, "traffic=sharegpt traffic.requests=10"),
    (TUNE, "scenario=traffic targets.tpot_ms=20"),
]


def unused(command: Command, arguments: str) -> list[UnusedOptions]:
    overrides = arguments.split()
    return unused_options(command.unused, compose(command, overrides), overrides)


@pytest.mark.parametrize(("command", "arguments", "message"), MISTAKES)
def test_what_can_only_be_a_mistake_is_refused(
    command: Command, arguments: str, message: str
) -> None:
    with pytest.raises(QuantlineError) as caught:
        check_unused(unused(command, arguments))
    assert message in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(("command", "arguments", "line"), WITHOUT_EFFECT)
def test_what_changes_no_result_is_named_in_one_line(
    command: Command, arguments: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check_unused(unused(command, arguments))
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(line)


@pytest.mark.parametrize(("command", "arguments"), WITH_EFFECT)
def test_what_has_an_effect_is_not_named(command: Command, arguments: str) -> None:
    assert unused(command, arguments) == []


def test_in_a_sweep_an_option_may_be_for_some_of_the_jobs() -> None:
    options = "recipe.gptq.block_size=64 calibration.samples=8 push_private=false"
    recipes = ("fp8_dynamic", "w8a8_smooth_gptq", "fp8_block")
    jobs = [unused(QUANTIZE, f"recipe={recipe} {options}") for recipe in recipes]
    assert [found.keys for found in unused_in_all(jobs)] == [("push_private",)]
    (data_free, _, other) = jobs
    assert [found.keys for found in unused_in_all([data_free, other])] == [
        ("calibration.samples",),
        ("recipe.gptq.block_size",),
        ("push_private",),
    ]


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_every_rule_names_options_that_there_are(command: Command) -> None:
    for rule in command.unused:
        for option in rule.options:
            check_key(option, command.schema)


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_every_option_that_is_for_something_has_a_rule(command: Command) -> None:
    """By its documentation: `For NAME: ...`."""
    if command is TRAFFIC:
        pytest.skip("has the options of evaluate, and uses only those of traffic")
    without = [
        name
        for name, _, text in options(command.schema)
        if text.startswith("For ") and not any(rule.covers(name) for rule in command.unused)
    ]
    assert [name for name in without if not name.startswith(REFUSED_BY_SCHEMA)] == []


@pytest.mark.parametrize("line", dict.fromkeys(OURS))
def test_no_documented_command_has_an_option_without_effect(line: str) -> None:
    words = shlex.split(line)
    module, *arguments = words[words.index("-m") + 1 :]
    command = COMMANDS.get(module)
    words = [word for word in with_answer_option(arguments) if "=" in word and word[0] != "-"]
    given = {given_key(word) for word in words}
    is_made_up = given & {"config", "recipe.file"} or "QUANTLINE_RECIPES" in line
    if command is None or is_made_up or "smoth" in line or "ours" in line:
        pytest.skip("needs files of the user, or has no rules")
    jobs: list[list[str]] = [[]]
    for word in words:
        key, _, value = word.partition("=")
        is_swept = "-m" in arguments and "," in value and not value.startswith("[")
        values = value.split(",") if is_swept else [value]
        jobs = [[*job, f"{key}={each}"] for job in jobs for each in values]
    found = [unused_options(command.unused, compose(command, job), job) for job in jobs]
    assert unused_in_all(found) == []


def test_commands_refuse_and_name_them(command_here: Run) -> None:
    result = command_here("evaluate", "model=tiny", "traffic.rate=8")
    assert result.returncode == 2
    assert result.stderr.startswith("error: traffic.rate: works only with scenario=traffic")
    options = ("recipe=fp8_dynamic", "calibration.samples=8", "preflight=only")
    result = command_here("quantize", "model=tiny", *options)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("calibration.samples has no effect") == 1


def test_a_sweep_refuses_and_names_them_once(tmp_path: Path, command_here: Run) -> None:
    recipes = "recipe=fp8_dynamic,fp8_block"
    result = command_here("quantize", "-m", "model=tiny", recipes, "recipe.gptq.block_size=64")
    assert result.returncode == 2
    assert result.stderr.count("recipe.gptq.block_size: works only with a recipe") == 1
    sweep = SweepRun(tmp_path)
    sweep.open_gates(0)
    options = ("launcher=local", "repeats=1", "recipes=[fp8_dynamic]", "checkpoint_root=there")
    code, said = sweep.run(*options, "scenario=interactive,base")
    assert code == 0, said
    assert said.count("checkpoint_root has no effect") == 1
