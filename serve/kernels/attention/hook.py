"""Puts our attention into vLLM's FlashAttention."""

import functools
import logging
from collections.abc import Callable
from types import ModuleType
from typing import Any

from conf.schema.kernels import ATTENTION
from serve.kernels.attention import rope, steps
from serve.kernels.imports import after_import
from serve.kernels.linear.conditions import capability_refusal, engine_refusal
from serve.kernels.settings import current_settings

logger = logging.getLogger("vllm.quantline")
FLASH_ATTENTION = "vllm.v1.attention.backends.flash_attn"
DONE = "_quantline_attention"


def register() -> None:
    """Has vLLM ask us, in each process that loads a model."""
    after_import(FLASH_ATTENTION, _insert)
    for name in rope.CLASSES:
        after_import(name, rope.hook)


def _insert(module: ModuleType) -> None:
    """A vLLM without these names runs its own attention."""
    try:
        backend: Any = module.FlashAttentionBackend
        builder: Any = module.FlashAttentionMetadataBuilder
        if getattr(backend, DONE, False):
            return
        _mark_fresh_steps(builder)
        _offer_ours(backend)
        setattr(backend, DONE, True)
    except Exception as error:
        logger.warning("quantline: vLLM's own attention is used: %s", error)


def _offer_ours(backend: Any) -> None:
    """vLLM asks for the class while it makes a layer, when the engine's settings are known."""
    own: Callable[[], type[Any]] = backend.get_impl_cls

    @functools.wraps(own)
    def get_impl_cls() -> type[Any]:
        if ATTENTION not in current_settings().families:
            return own()
        try:
            refused = engine_refusal() or capability_refusal()
            if refused:
                _say_once(f"vLLM's own attention is used: ours {refused}")
                return own()
            from serve.kernels.attention.impl import QuantlineAttentionImpl
        except Exception as error:
            _say_once(f"vLLM's own attention is used: {error}")
            return own()
        return QuantlineAttentionImpl

    backend.get_impl_cls = staticmethod(get_impl_cls)


@functools.cache
def _say_once(text: str) -> None:
    """A model has many layers."""
    logger.warning("quantline: %s", text)


def _mark_fresh_steps(builder: Any) -> None:
    original: Callable[..., Any] = builder.build

    @functools.wraps(original)
    def build(
        self: Any, common_prefix_len: int, common_attn_metadata: Any, *args: Any, **kwargs: Any
    ) -> Any:
        metadata = original(self, common_prefix_len, common_attn_metadata, *args, **kwargs)
        setattr(metadata, steps.FRESH, steps.is_fresh(common_attn_metadata))
        return metadata

    builder.build = build
