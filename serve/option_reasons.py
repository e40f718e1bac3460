"""The options of a server, with one line for the reason of each."""

import math
from dataclasses import dataclass, field

from conf.schema.load import EngineConfig, EngineOptions
from serve.engine.launch import on_cpu, options
from serve.fit import SHARE, Fit
from serve.kernels.settings import OPTION, with_kernels
from serve.resolving import ServedCheckpoint


@dataclass
class ChosenOptions:
    """Options of vLLM and the reasons for them."""

    options: EngineOptions
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def lines(self) -> list[str]:
        return [f"{name}={self.options[name]}: {reason}" for name, reason in self.reasons.items()]


def choose_options(engine: EngineConfig, served: ServedCheckpoint, memory: Fit) -> ChosenOptions:
    """The requested options, then those that were measured, then those for this machine."""
    chosen = ChosenOptions(options(engine))
    requested = dict(engine.options)
    if engine.max_model_len:
        requested["max_model_len"] = engine.max_model_len
    _explain_machine(chosen, engine)
    for name, value in served.options.items():
        if name not in requested:
            chosen.options[name] = value
            chosen.reasons[name] = served.reasons.get(name, "as it was measured")
    if "max_model_len" not in requested and memory.context < memory.limit:
        chosen.options["max_model_len"] = memory.context
        chosen.reasons["max_model_len"] = (
            f"{memory.cache_gib:.1f} GiB of cache hold no longer context; the model's limit is "
            f"{memory.limit:,}"
        )
    if "allowed_origins" not in requested:
        chosen.options["allowed_origins"] = []
        chosen.reasons["allowed_origins"] = "web pages may not call it from a browser"
    if memory.share is not None and "gpu_memory_utilization" not in chosen.options:
        chosen.options["gpu_memory_utilization"] = math.floor(memory.share * 100) / 100
        chosen.reasons["gpu_memory_utilization"] = (
            f"{memory.taken_gib:.1f} GiB of the GPU are taken by others"
            if memory.share < SHARE
            else "the rest is for other programs on the GPU"
        )
    if not on_cpu():  # beside an additional_config that was measured
        chosen.options = with_kernels(chosen.options, engine.kernels)
        if served.kernels == engine.kernels and not engine.kernels.chosen:
            chosen.reasons[OPTION] = "it was measured on vLLM's own kernels"
    return chosen


def _explain_machine(chosen: ChosenOptions, engine: EngineConfig) -> None:
    if engine.dtype == "auto" and chosen.options["dtype"] == "float32":
        chosen.reasons["dtype"] = "this CPU has no bf16 instructions"
    if engine.enforce_eager is None and on_cpu():
        chosen.reasons["enforce_eager"] = "compiling takes minutes on a CPU"
