"""Why a layer is left to vLLM, and which kernel of vLLM's own runs it then."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from conf.errors import one_line
from serve.kernels.record import ALL, LayerKernels, TokenRange, note_refusal
from serve.kernels.settings import current_settings

logger = logging.getLogger("vllm.quantline")
OURS = "serve.kernels.linear"
WORKS_FROM = 80
"""The lowest compute capability, times ten, that our products are written for."""


def answer(
    silent: Callable[[], str | None],
    logged: Callable[[], str | None],
    left: Callable[[], LayerKernels],
) -> tuple[bool, str | None]:
    """What vLLM's kernel classes answer, from why a layer is refused. A reason of `silent` tells
    nobody anything, as that no kernels of ours were asked for. A reason of `logged` is logged with
    what `left` knows of the layer: vLLM forgets it when another kernel takes the layer. Never
    raises: vLLM asks for every layer, also of engines that use none of ours."""
    level = logging.INFO
    try:
        reason = silent()
        if reason is not None:
            return False, reason
        reason = logged()
    except Exception as error:
        reason, level = f"fails: {one_line(error)}", logging.WARNING
        logger.debug("quantline: a kernel class", exc_info=True)
    if reason is not None:
        _log(f"our kernel {reason}", level, left)
    return reason is None, reason


def _log(reason: str, level: int, left: Callable[[], LayerKernels]) -> None:
    try:
        note_refusal(replace(left(), refused={ALL: reason}), level)
    except Exception as error:
        logger.warning("quantline: layers are left to vLLM: %s (%s)", reason, error)


def not_offered(*families: str) -> str | None:
    """Why an engine was offered none of these families of ours; None where it was."""
    from vllm.platforms import current_platform

    if not current_platform.is_cuda():
        return "runs on NVIDIA GPUs only"
    if not set(families) & set(asked_families()):
        return "was not asked for"
    return None


def engine_refusal() -> str | None:
    """Why an engine that was offered kernels of ours uses none; None where it does."""
    import vllm.envs as envs
    from vllm.config import get_current_vllm_config_or_none

    if envs.VLLM_BATCH_INVARIANT:
        return "computes differently for different numbers of tokens (VLLM_BATCH_INVARIANT)"
    config = get_current_vllm_config_or_none()
    if getattr(config, "lora_config", None) is not None:
        return "does not run LoRA adapters"
    if getattr(getattr(config, "model_config", None), "enable_sleep_mode", False):
        return "measures in memory that sleep mode would never give back"
    if _offloads(getattr(config, "offload_config", None)):
        return "keeps weights on the GPU, and these are offloaded to the host"
    return None


def _offloads(config: Any) -> bool:
    """Whether vLLM moves weights to the host: it knows them by the names of the checkpoint."""
    amount = getattr(getattr(config, "uva", None), "cpu_offload_gb", 0)
    groups = getattr(getattr(config, "prefetch", None), "offload_group_size", 0)
    return bool(amount or groups)


def asked_families() -> tuple[str, ...]:
    """The families of ours that the engine at hand may use."""
    return current_settings().families


def model_dtype() -> torch.dtype:
    """The type of the engine's activations."""
    from vllm.config import get_current_vllm_config_or_none

    model = getattr(get_current_vllm_config_or_none(), "model_config", None)
    dtype = getattr(model, "dtype", torch.bfloat16)
    return dtype if isinstance(dtype, torch.dtype) else torch.bfloat16


def capability_refusal(least: int = WORKS_FROM) -> str | None:
    """Why a GPU is not taken; an unknown capability is. Our classes say it when they are asked for
    a layer: vLLM asks for the capability first, and forgets a reason that is given there."""
    found = capability()
    if found is None or found >= least:
        return None
    return f"needs compute capability {least / 10:g}, and this is {found / 10:g}"


def capability() -> int | None:
    """The GPU's compute capability, times ten."""
    from vllm.platforms import current_platform

    found = current_platform.get_device_capability()
    return None if found is None else found[0] * 10 + found[1]


def vllms_choice(kernels: dict[Any, list[type[Any]]], config: Any) -> Any:
    """The kernel that vLLM would choose without ours; None where it has none."""
    import vllm.envs as envs
    from vllm.platforms import current_platform

    for kernel in kernels.get(current_platform._enum, []):
        if kernel.__module__.startswith(OURS) or kernel.__name__ in envs.VLLM_DISABLED_KERNELS:
            continue
        if _is_supported(kernel) and kernel.can_implement(config)[0]:
            return kernel
    return None


def run_by_vllm(kernels: dict[Any, list[type[Any]]], config: Any) -> tuple[TokenRange, ...]:
    """What a layer runs that is left to vLLM; nothing where vLLM has no kernel for it."""
    from vllm.model_executor.kernels import linear

    # Newer versions of vLLM change the order of their list on some GPUs.
    in_order = getattr(linear, "prioritize_humming", list)
    own = vllms_choice({platform: in_order(listed) for platform, listed in kernels.items()}, config)
    return () if own is None else (TokenRange(None, own.__name__),)


def own_refusal(own: type[Any] | None, *names: str) -> str | None:
    """Why a layer is left to vLLM's own kernel: ours are measured against these, and a user or
    another GPU may have chosen another one."""
    if own is None:
        return "needs a kernel of vLLM to fall back to"
    if not own.__name__.startswith(names):
        return f"is compared with {' or '.join(names)}, and vLLM runs this with {own.__name__}"
    return None


def _is_supported(kernel: type[Any]) -> bool:
    """Kernels of scaled products say it themselves, those of mixed ones name a capability."""
    found = capability()
    if hasattr(kernel, "is_supported"):
        return bool(kernel.is_supported(found)[0])
    return found is None or bool(kernel.get_min_capability() <= found)
