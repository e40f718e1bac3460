"""Which attention calibration passes run with.

llm-compressor forces eager attention, which writes every attention weight to memory. PyTorch's
SDPA gives the same outputs in half the time, where the mask is purely causal.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from compressed_tensors.utils import patch_attr

SDPA = "sdpa"
FULL_ATTENTION = "full_attention"
NOT_CAUSAL_ALONE = (
    "attn_logit_softcapping",
    "attention_chunk_size",
    "sliding_window",
)
"""Options of a model's config that change attention scores or masks, where they are set."""


@contextlib.contextmanager
def fast_attention(model: Any, batches: Iterable[dict[str, torch.Tensor]]) -> Iterator[None]:
    """SDPA in every part of the model, if its attention is purely causal; else as it is."""
    configs = _configs(model)
    if not is_purely_causal(model, configs) or _is_padded(batches):
        yield
        return
    with contextlib.ExitStack() as stack:
        for config in configs:
            stack.enter_context(patch_attr(config, "_attn_implementation", SDPA))
        yield


def _configs(model: torch.nn.Module) -> list[Any]:
    """The configs that the model's parts read."""
    configs = [getattr(module, "config", None) for module in model.modules()]
    named = {id(config): config for config in configs if hasattr(config, "_attn_implementation")}
    return list(named.values())


def is_purely_causal(model: Any, configs: list[Any]) -> bool:
    """Whether a token attends to all tokens before it, by scores that nothing changes."""
    if not getattr(model, "_supports_sdpa", False):
        return False
    # By name alone: to read an offloaded parameter would load it onto the GPU.
    names = [name for module in model.modules() for name in module._parameters]
    has_sinks = any(name.endswith("sinks") for name in names)
    return not has_sinks and all(map(_is_plain, configs))


def _is_plain(config: Any) -> bool:
    if getattr(config, "is_encoder_decoder", False):
        return False
    layer_types = getattr(config, "layer_types", None)
    if layer_types is not None:
        return set(layer_types) == {FULL_ATTENTION} and not _any_set(config, NOT_CAUSAL_ALONE[:-1])
    if getattr(config, "use_sliding_window", None) is False:
        return not _any_set(config, NOT_CAUSAL_ALONE[:-1])
    return not _any_set(config, NOT_CAUSAL_ALONE)


def _any_set(config: Any, names: Iterable[str]) -> bool:
    return any(getattr(config, name, None) is not None for name in names)


def _is_padded(batches: Iterable[dict[str, torch.Tensor]]) -> bool:
    return any(
        "attention_mask" in batch and not bool(batch["attention_mask"].all()) for batch in batches
    )
