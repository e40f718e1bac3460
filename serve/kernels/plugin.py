"""Registers our kernels in vLLM: the entry point of the group `vllm.general_plugins`.

vLLM calls it in each of its processes. It does these things, each only when vLLM has imported a
certain module, so that a process that loads no model pays nothing:
- vLLM learns the format of weights in codebooks (VPTQ), which it does not have, also on a CPU;
- an engine's config gets our entry in additional_config, unless it was asked for vLLM's kernels,
  which changes the key of its compiled graphs;
- our kernel classes come first in vLLM's lists. They refuse every layer of an engine whose config
  has no entry of ours. An explicit linear_backend of the user leaves them out, as vLLM's rule is;
- vLLM's FlashAttention offers our class of attention to engines that ask for it, and compiled
  graphs overlap where that is asked for.
"""

import functools
import importlib
import logging
from collections.abc import Callable
from types import ModuleType
from typing import Any

from serve.kernels import overlap, record
from serve.kernels.amx import request_amx
from serve.kernels.imports import after_import
from serve.kernels.settings import ENTRY, OPTION, Settings, read_settings

logger = logging.getLogger("vllm.quantline")
ENGINE_ARGS, WORKER = "vllm.engine.arg_utils", "vllm.v1.worker.gpu_worker"
CPU_WORKER = "vllm.v1.worker.cpu_worker"
FORMATS = "vllm.model_executor.layers.quantization"
MODULES = ("int8", "fp8", "fp8_head", "weight_only", "w4afp8")
"""Modules of serve.kernels.linear. Each has register(), which puts its classes into the lists."""
DONE = "_quantline_is_registered"


def register() -> None:
    """Never raises: a vLLM that would start without us must start with us."""
    try:
        after_import(FORMATS, _add_formats)
        if _is_cuda():
            after_import(ENGINE_ARGS, _complete_configs)
            after_import(WORKER, _insert_kernels)
            overlap.register()
            importlib.import_module("serve.kernels.attention.hook").register()
        else:
            after_import(CPU_WORKER, request_amx)
    except Exception:
        logger.exception("quantline: its kernels were not registered; vLLM's own are used")


def _add_formats(_: ModuleType) -> None:
    try:
        importlib.import_module("serve.kernels.vptq.config").register()
    except Exception:
        logger.exception("quantline: VPTQ was not registered; vLLM will refuse such checkpoints")


def _is_cuda() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cuda())


def _complete_configs(module: ModuleType) -> None:
    """Makes EngineArgs write our entry into every config that it creates."""
    engine_args: Any = module.EngineArgs
    original: Callable[..., Any] = engine_args.create_engine_config
    if getattr(original, DONE, False):
        return

    @functools.wraps(original)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        config = original(self, *args, **kwargs)
        complete(config)
        return config

    setattr(create_engine_config, DONE, True)
    engine_args.create_engine_config = create_engine_config


def complete(config: Any) -> None:
    """Writes the settings of a config out; without kernels of ours, the config has no entry, and
    the key of its graphs is that of a vLLM without us."""
    try:
        record.forget()
        entries = getattr(config, OPTION, None)
        if not isinstance(entries, dict):
            logger.warning("quantline: vLLM's own kernels are used: %s is no dict", OPTION)
            return
        others = {name: value for name, value in entries.items() if name != ENTRY}
        settings = _readable_settings(entries)
        config.additional_config = others | ({ENTRY: settings.entry} if settings.families else {})
        overlap.overlap_kernels(config, settings)
    except Exception:
        logger.exception("quantline: vLLM's own kernels are used")


def _readable_settings(entries: dict[str, Any]) -> Settings:
    try:
        return read_settings(entries)
    except ValueError as error:
        logger.warning("quantline: vLLM's own kernels are used: %s %s", OPTION, error)
        return Settings(families=())


def _insert_kernels(_: ModuleType) -> None:
    for name in MODULES:
        try:
            importlib.import_module(f"serve.kernels.linear.{name}").register()
        except Exception as error:
            logger.warning("quantline: vLLM's own kernels are used for %s: %s", name, error)
            logger.debug("quantline: %s", name, exc_info=True)


def insert_first(kernels: dict[Any, list[type[Any]]], kernel: type[Any]) -> None:
    """Puts a kernel class before vLLM's own for CUDA, once."""
    from vllm.platforms import PlatformEnum

    listed = kernels.setdefault(PlatformEnum.CUDA, [])
    name = (kernel.__module__, kernel.__qualname__)
    if all((known.__module__, known.__qualname__) != name for known in listed):
        listed.insert(0, kernel)
