"""The rules of each command: which of its options have an effect beside which others."""

from typing import Any

from conf.schema.commands import LM_EVAL, QUESTIONS, QUICK, EvaluateConfig, QuantizeConfig
from conf.schema.steps import has_options, known_steps
from conf.unused.parts import (
    BY_CONTINUING,
    BY_TASKS,
    BY_TEXT,
    ENGINE,
    GPU_PRICES,
    SUSTAINED,
    TRAFFIC_IN_SCENARIO,
    kind_is,
    never,
    searches,
    takes_traffic,
    text_rules,
)
from conf.unused.rule import Rule

SENSITIVITY = "sensitivity"
LATENCY_TARGETS = ("targets.ttft_ms", "targets.tpot_ms")
OTHER_TARGETS = ("targets.min_recovery", "targets.max_memory_gib", "targets.allow_unjudged")


def _is_accuracy_measured(config: Any) -> bool:
    return bool(config.accuracy.kind != "none")


def _may_time(config: EvaluateConfig) -> bool:
    return config.accuracy.kind in ("none", QUICK)


def _times(config: EvaluateConfig) -> bool:
    return _may_time(config) and bool(config.scenario)


def _finds_checkpoints(config: EvaluateConfig) -> bool:
    return config.weights != "random" and config.accuracy.kind != SENSITIVITY


def _measures_checkpoints(config: EvaluateConfig) -> bool:
    return config.accuracy.kind != SENSITIVITY


def _looks_for_checkpoint(config: Any) -> bool:
    """Of a command for one checkpoint."""
    return not config.checkpoint and getattr(config, "weights", "trained") != "random"


def _serves(config: Any) -> bool:
    return config.prompt is None


def _writes_files(config: Any) -> bool:
    return config.answer is None


def _pushes(config: QuantizeConfig) -> bool:
    return config.push is not None


def _reads_text(config: QuantizeConfig) -> bool:
    """Whether it calibrates. What a recipe.file needs is known when it is read."""
    recipe = config.recipe
    return bool(recipe.file) or recipe.needs_text or config.kv_cache is not None


def _may_have_experts(config: QuantizeConfig) -> bool:
    """False for a listed model without experts; what another one has is in its files."""
    architecture = config.model.architecture
    return architecture is None or architecture.num_experts > 0


def _step_rule(name: str) -> Rule:
    return Rule(
        (f"recipe.{name}",),
        lambda config: bool(config.recipe.file) or name in config.recipe.steps,
        f"a recipe that has the step {name}",
    )


ACCURACY = (
    Rule(BY_TASKS, kind_is(LM_EVAL, QUESTIONS), "accuracy=lm_eval or accuracy=questions"),
    Rule(BY_CONTINUING, kind_is(QUICK), "accuracy=quick"),
    Rule(BY_TEXT, kind_is(QUICK, SENSITIVITY), "accuracy=quick or accuracy=sensitivity"),
    *text_rules("accuracy.text", "accuracy.text.source"),
    Rule(
        ("accuracy.min_recovery",),
        kind_is(QUICK, LM_EVAL, QUESTIONS),
        "accuracy=quick, lm_eval or questions",
    ),
    Rule(("accuracy",), _is_accuracy_measured, "accuracy=quick, lm_eval, questions or sensitivity"),
)
EVALUATE = (
    *ACCURACY,
    Rule(("scenario",), _may_time, "accuracy=quick or none: other kinds measure no speed beside"),
    SUSTAINED,
    *TRAFFIC_IN_SCENARIO,
    Rule(("capacity",), searches, "scenario=capacity"),
    Rule(("profile",), _times, "a scenario that is timed"),
    Rule(("repeats", "starts"), _times, "a scenario that is timed", is_mistake=False),
    Rule(("checkpoints",), _measures_checkpoints, "other accuracies; sensitivity takes recipes="),
    Rule(
        ("checkpoint_root",), _finds_checkpoints, "checkpoints, not with recipes=", is_mistake=False
    ),
    *ENGINE,
)
TUNE = (
    *ACCURACY,
    SUSTAINED,
    *TRAFFIC_IN_SCENARIO,
    Rule(LATENCY_TARGETS, takes_traffic, "scenario=traffic; others have the shortest time as goal"),
    Rule(OTHER_TARGETS, never, "python -m evaluate and evaluate.report"),
    Rule(
        ("checkpoint_root",),
        _looks_for_checkpoint,
        "a published checkpoint, not with checkpoint= or weights=random",
        is_mistake=False,
    ),
    GPU_PRICES,
)
QUANTIZE = (
    *text_rules("calibration", "calibration"),
    Rule(
        ("calibration", "batch_size"),
        _reads_text,
        "a recipe that is calibrated; this one reads no text",
        is_mistake=False,
    ),
    Rule(("min_expert_tokens",), _may_have_experts, "a mixture of experts", is_mistake=False),
    *(_step_rule(name) for name, step in known_steps().items() if has_options(step)),
    Rule(("push_private",), _pushes, "push=ORG/NAME", is_mistake=False),
    GPU_PRICES,
)
SERVE = (
    Rule(("engine.url",), never, "python -m evaluate; serve starts a server of its own"),
    Rule(("host", "port", "api_key_file"), _serves, "a server; prompt= starts none"),
    Rule(
        ("canary", "restart", "drain_s"),
        _serves,
        "a server; prompt= starts none",
        is_mistake=False,
    ),
    Rule(
        ("checkpoint_root",),
        _looks_for_checkpoint,
        "a published checkpoint, not with checkpoint=",
        is_mistake=False,
    ),
    GPU_PRICES,
)
REPORT = (Rule(("out",), _writes_files, "files; answer= prints and writes none"),)
