"""The options that a server is started with, and the reason for each, in one line."""

import math
from dataclasses import dataclass, field
from typing import Any

from conf.schema.load import EngineConfig
from serve.engine.launch import on_cpu, options
from serve.fit import SHARE, Fit
from serve.resolving import Found


@dataclass
class Choices:
    """Options of vLLM and why."""

    options: dict[str, Any]
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def lines(self) -> list[str]:
        return [f"{name}={self.options[name]}: {why}" for name, why in self.reasons.items()]


def choices(engine: EngineConfig, found: Found, fits: Fit) -> Choices:
    """What was asked for stands; the rest by what was measured, and by this machine."""
    chosen = Choices(options(engine))
    asked = dict(engine.options)
    if engine.max_model_len:
        asked["max_model_len"] = engine.max_model_len
    _explain_machine(chosen, engine)
    for name, value in found.options.items():
        if name not in asked:
            chosen.options[name] = value
            chosen.reasons[name] = found.reasons.get(name, "as it was measured")
    if "max_model_len" not in asked and fits.context < fits.limit:
        chosen.options["max_model_len"] = fits.context
        chosen.reasons["max_model_len"] = (
            f"{fits.cache_gib:.1f} GiB of cache hold no more; the model was made for {fits.limit:,}"
        )
    if "allowed_origins" not in asked:
        chosen.options["allowed_origins"] = []
        chosen.reasons["allowed_origins"] = "no web page may call it from somebody's browser"
    if fits.share is not None and "gpu_memory_utilization" not in chosen.options:
        chosen.options["gpu_memory_utilization"] = math.floor(fits.share * 100) / 100
        chosen.reasons["gpu_memory_utilization"] = (
            f"{fits.taken_gib:.1f} GiB of the GPU are taken by others"
            if fits.share < SHARE
            else "the rest is for what else runs on the card"
        )
    return chosen


def _explain_machine(chosen: Choices, engine: EngineConfig) -> None:
    if engine.dtype == "auto" and chosen.options["dtype"] == "float32":
        chosen.reasons["dtype"] = "this CPU multiplies no bf16"
    if engine.enforce_eager is None and on_cpu():
        chosen.reasons["enforce_eager"] = "compiling takes minutes on a CPU"
