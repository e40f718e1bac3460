"""The settings that a search may change, in one table: values, where they apply, what they change.

Every setting is an option of vLLM 0.25.1 and 0.32, or one of ours. Its values stand beside the
default, which the engine chooses for itself where nothing is given. A search tries the first value
of each setting alone before it combines them, in the order of the table.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from conf.schema.kernels import (
    AUTOMATIC,
    KERNELS_OPTION,
    ON_REQUEST,
    ONE_TOKEN_OVERLAP,
    OVERLAP,
    VLLM,
)

Value = bool | int | str | list[str] | dict[str, Any]
COMPILATION, PASSES = "compilation_config", "pass_config"
KERNEL_CONFIG = "kernel_config"
MOST_CAPTURED, CAPTURED = "max_cudagraph_capture_size", "cudagraph_capture_sizes"


class Need(Enum):
    """What a setting needs to have an effect."""

    GPU = "works only on a GPU"
    COMPILING = "works only with compiling and graphs, and engine.enforce_eager is on"
    QUANTIZED = "works only for a quantized checkpoint"
    ONE_REQUEST = "acts only where one request runs at a time"
    """Met by the workload: known from the requests at once, and where arrivals decide."""
    EXPERTS = "works only for a mixture of experts"
    FP8 = "works only for FP8 weights and activations"
    WEIGHT_ONLY = "works only for INT weights with 16-bit activations"


class Limit(Enum):
    """The size of a workload that bounds a setting: larger values have no further effect."""

    REQUESTS = "requests at once"
    STEP_TOKENS = "prompt tokens at once"


def _values(*values: Value) -> dict[str, Value]:
    """Values by their labels, which are as they are typed."""
    return {str(v).lower() if isinstance(v, bool) else str(v): v for v in values}


def _n_grams(*tokens: int) -> dict[str, Value]:
    return {
        f"ngram-{count}": {
            "method": "ngram",
            "num_speculative_tokens": count,
            "prompt_lookup_max": 4,
            "prompt_lookup_min": 2,
        }
        for count in tokens
    }


@dataclass(frozen=True)
class Setting:
    """One setting of the engine."""

    name: str
    values: Mapping[str, Value]
    """The values beside the default, by their labels."""
    path: tuple[str, ...] = ()
    """Its place in nested options; by default its own name."""
    other_paths: tuple[tuple[str, ...], ...] = ()
    """Further places where a user may have fixed it."""
    needs: tuple[Need, ...] = ()
    replaces: str = ""
    """The setting that has no effect beside this one."""
    limit: Limit | None = None
    changes_answers: bool = False
    """Whether answers differ by more than rounding: it must be judged before it is served."""
    value_needs: Mapping[str, tuple[Need, ...]] = field(default_factory=dict)
    """What single values need to have an effect, by their labels."""
    fixes_context: bool = False
    """Whether an engine starts with it only for a context as short as the measured one. It would
    refuse longer requests, so it is searched only where it is named."""

    @property
    def place(self) -> tuple[str, ...]:
        return self.path or (self.name,)


_ON_GPU, _COMPILED = (Need.GPU,), (Need.GPU, Need.COMPILING)

TABLE = (
    Setting(
        KERNELS_OPTION,
        {name: [*AUTOMATIC, name] for name in ON_REQUEST} | {VLLM: VLLM},
        needs=_ON_GPU,  # ours run attention of 16-bit models, too
        value_needs={
            OVERLAP: (Need.COMPILING,),
            ONE_TOKEN_OVERLAP: (Need.COMPILING, Need.ONE_REQUEST),
        },
    ),
    # An explicit backend leaves our classes of linear layers out. vLLM's usual one is kernels=vllm.
    Setting(
        "linear_backend",
        _values("marlin", "cutlass", "torch"),
        other_paths=((KERNEL_CONFIG, "linear_backend"),),
        needs=(Need.GPU, Need.QUANTIZED),
        replaces=KERNELS_OPTION,
        value_needs={
            "marlin": (Need.WEIGHT_ONLY,),
            "cutlass": (Need.FP8,),
            "torch": (Need.FP8,),
        },
    ),
    Setting(
        "attention_backend",
        _values("FLASHINFER", "FLASH_ATTN", "TRITON_ATTN"),
        other_paths=(("attention_config", "backend"),),
        needs=_ON_GPU,
    ),
    Setting(
        "moe_backend",
        _values("flashinfer_cutlass", "triton", "cutlass"),
        other_paths=((KERNEL_CONFIG, "moe_backend"),),
        needs=(Need.GPU, Need.EXPERTS),
        value_needs={"cutlass": (Need.FP8,)},
    ),
    Setting("performance_mode", _values("interactivity", "throughput"), needs=_ON_GPU),
    Setting(
        "max_num_batched_tokens",
        _values(4096, 16384, 8192, 2048, 32768),
        limit=Limit.STEP_TOKENS,
    ),
    Setting("max_num_seqs", _values(64, 32, 16, 128, 256, 512), limit=Limit.REQUESTS),
    Setting("async_scheduling", _values(False), needs=_ON_GPU),
    Setting(
        "cudagraph_mode",
        _values("FULL_DECODE_ONLY", "PIECEWISE", "FULL"),
        (COMPILATION, "cudagraph_mode"),
        needs=_COMPILED,
    ),
    # vLLM refuses it beside its nested twin, and beside sizes with another maximum.
    Setting(
        MOST_CAPTURED,
        _values(1024, 128),
        other_paths=((COMPILATION, MOST_CAPTURED), (CAPTURED,), (COMPILATION, CAPTURED)),
        needs=_COMPILED,
    ),
    Setting("custom_ops", {"all": ["all"]}, (COMPILATION, "custom_ops"), needs=_COMPILED),
    Setting(
        "enable_qk_norm_rope_fusion",
        _values(True),
        (COMPILATION, PASSES, "enable_qk_norm_rope_fusion"),
        needs=_COMPILED,
    ),
    Setting(
        "fuse_norm_quant",
        _values(True),
        (COMPILATION, PASSES, "fuse_norm_quant"),
        needs=(*_COMPILED, Need.QUANTIZED),
    ),
    Setting(
        "fuse_act_quant",
        _values(True),
        (COMPILATION, PASSES, "fuse_act_quant"),
        needs=(*_COMPILED, Need.QUANTIZED),
    ),
    Setting("enable_chunked_prefill", _values(False), fixes_context=True),
    Setting("kv_cache_dtype", _values("fp8"), needs=_ON_GPU, changes_answers=True),
    Setting(
        "speculation",
        _n_grams(3, 5),
        ("speculative_config",),
        other_paths=(("spec_method",), ("spec_model",), ("spec_tokens",)),
        needs=_ON_GPU,
        changes_answers=True,
    ),
)
NAMES = tuple(setting.name for setting in TABLE)
