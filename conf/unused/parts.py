"""Rules of options that several commands have: text, traffic, accuracy, engine, prices."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from conf.schema.report import PRICES
from conf.schema.text import TextSource
from conf.schema.traffic import (
    BURSTY,
    CLOSED,
    FILE,
    LOGNORMAL,
    POISSON,
    REPLAYED,
    SYNTHETIC,
    UNIFORM,
    LengthsConfig,
    TrafficConfig,
)
from conf.unused.rule import Rule


def never(_: Any) -> bool:
    return False


def kind_is(*kinds: str) -> Callable[[Any], bool]:
    """Whether the accuracy is measured in one of these ways."""
    return lambda config: config.accuracy.kind in kinds


def text_rules(prefix: str, choice: str) -> tuple[Rule, ...]:
    """Where the text comes from. `choice` is the option that chooses the source."""
    source: Callable[[Any], TextSource] = attrgetter(prefix)
    hub = tuple(f"{prefix}.{name}" for name in ("id", "subset", "split", "revision"))
    columns = tuple(f"{prefix}.{name}" for name in ("column", "answer_column", "chat"))
    return (
        Rule((f"{prefix}.path",), lambda c: source(c).source == "file", f"{choice}=file"),
        Rule(hub, lambda c: source(c).source == "hub", f"a data set of the hub as {choice}"),
        Rule(
            columns,
            lambda c: source(c).source != "python_docs",
            f"a file or a data set of the hub as {choice}",
        ),
    )


def traffic_rules() -> tuple[Rule, ...]:
    """Options of traffic beside its source and its arrivals."""
    traffic: Callable[[Any], TrafficConfig] = attrgetter("traffic")
    synthetic = tuple(f"traffic.{name}" for name in ("input", "prefixes", "prefix_tokens"))
    return (
        Rule(
            ("traffic.format", "traffic.skip_bad"),
            lambda c: traffic(c).source == FILE,
            "traffic=file",
        ),
        Rule(
            synthetic,
            lambda c: traffic(c).source == SYNTHETIC,
            "traffic=synthetic",
        ),
        Rule(  # whether a file has answers without a length is known when it is read
            ("traffic.output",),
            lambda c: traffic(c).source in (SYNTHETIC, FILE),
            "traffic=synthetic, or traffic=file with answers without a length",
        ),
        Rule(
            ("traffic.prefixes",), lambda c: traffic(c).prefix_tokens > 0, "traffic.prefix_tokens"
        ),
        Rule(("traffic.pause_s",), lambda c: traffic(c).turns > 1, "traffic.turns above 1"),
        *_arrival_rules(traffic),
        *_length_rules("traffic.input"),
        *_length_rules("traffic.output"),
    )


def _arrival_rules(traffic: Callable[[Any], TrafficConfig]) -> tuple[Rule, ...]:
    def arrives(*kinds: str) -> Callable[[Any], bool]:
        return lambda config: traffic(config).arrivals in kinds

    return (
        Rule(("traffic.rate",), arrives(POISSON, BURSTY), "traffic.arrivals=poisson or bursty"),
        Rule(("traffic.burstiness",), arrives(BURSTY), "traffic.arrivals=bursty"),
        Rule(("traffic.concurrency",), arrives(CLOSED), "traffic.arrivals=closed"),
        Rule(("traffic.speed",), arrives(REPLAYED), "traffic.arrivals=replayed"),
    )


def _length_rules(prefix: str) -> tuple[Rule, ...]:
    lengths: Callable[[Any], LengthsConfig] = attrgetter(prefix)
    return (
        Rule(
            (f"{prefix}.sigma",),
            lambda c: lengths(c).distribution == LOGNORMAL,
            f"{prefix}.distribution=lognormal",
        ),
        Rule(
            (f"{prefix}.median",),
            lambda c: lengths(c).distribution != UNIFORM,
            f"{prefix}.distribution=fixed or lognormal",
        ),
    )


def takes_traffic(config: Any) -> bool:
    return any(scenario.from_traffic for scenario in config.scenario.values())


def searches(config: Any) -> bool:
    return any(scenario.search for scenario in config.scenario.values())


def has_fixed_rate(config: Any) -> bool:
    """Whether a scenario takes its requests at the rate of the traffic."""
    return any(entry.from_traffic and not entry.search for entry in config.scenario.values())


def has_sustained(config: Any) -> bool:
    return any(scenario.is_sustained for scenario in config.scenario.values())


SUSTAINED = Rule(
    tuple(f"scenario.*.{name}" for name in ("requests", "ttft_ms", "tpot_ms")),
    has_sustained,
    "a sustained workload, not with a batch",
)
TRAFFIC_IN_SCENARIO = (
    Rule(("traffic",), takes_traffic, "scenario=traffic or scenario=capacity"),
    Rule(("traffic.rate",), has_fixed_rate, "scenario=traffic; scenario=capacity searches it"),
    *traffic_rules(),
)
BY_TEXT = ("accuracy.text", "accuracy.tokens", "accuracy.window")
BY_CONTINUING = ("accuracy.likely", "accuracy.continuations", "accuracy.continued_tokens")
BY_TASKS = ("accuracy.tasks", "accuracy.fewshot", "accuracy.limit", "accuracy.chat_template")
KERNELS_RUN = "engine=vllm, or engine=vllm_server that starts its own server"


def starts_vllm(config: Any) -> bool:
    return bool(config.engine.starts_vllm)


ENGINE = (
    Rule(("engine.kernels", "engine.allow_missing_kv_scales"), starts_vllm, KERNELS_RUN),
    Rule(("engine.enforce_eager",), starts_vllm, KERNELS_RUN, is_mistake=False),
)
GPU_PRICES = Rule(
    tuple(f"gpu.{name}" for name in PRICES),
    never,
    "python -m evaluate and evaluate.report, which show costs",
    is_mistake=False,
)
