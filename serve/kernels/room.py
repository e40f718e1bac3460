"""Whether the GPU of an engine has room for further layouts of its weights.

Copies of the weights take memory of the KV cache. A checkpoint that fits without them must load, so
they are made only where enough is left. It is decided once for an engine, when its first layer is
loaded: vLLM has all weights on the GPU by then.
"""

import logging
from typing import Any

import torch

from serve.kernels.memory import Room, most_copies
from serve.kernels.settings import current_settings, decide_second_layout

logger = logging.getLogger("vllm.quantline")
GIB = 2**30


def keeps_second_layouts(family: str | None, device: torch.device) -> bool:
    """For a layer of this family; None for layers whose kernels read vLLM's own layout."""
    chosen = current_settings().second_layout
    if chosen is not None or family is None or device.type != "cuda":
        return chosen is not False
    decided = _has_room(family, device)
    decide_second_layout(decided)
    return decided


def _has_room(family: str, device: torch.device) -> bool:
    from vllm.config import get_current_vllm_config_or_none

    config: Any = getattr(get_current_vllm_config_or_none(), "cache_config", None)
    share = getattr(config, "gpu_memory_utilization", 1.0)
    cache = getattr(config, "kv_cache_memory_bytes", None)
    weights = torch.cuda.memory_allocated(device)
    free, total = torch.cuda.mem_get_info(device)
    if Room(weights, share * total - weights, free).is_enough(family, cache):
        return True
    logger.info(
        "quantline: one layout of the weights: copies of up to %.1f GiB would leave too little for "
        "the KV cache. engine.kernels.second_layout=true makes them",
        most_copies(family) * weights / GIB,
    )
    return False
