"""Intel's AMX in vLLM's processes on a CPU."""

import logging
from types import ModuleType

logger = logging.getLogger("vllm.quantline")


def request_amx(_: ModuleType) -> None:
    """Linux lets a process use AMX only once it has asked for it. vLLM's attention uses it without
    asking, and counts on an earlier product of oneDNN: a first prompt of one token has none, and
    the process dies of an illegal instruction."""
    try:
        import torch

        if torch.cpu._is_amx_tile_supported() and not torch.cpu._init_amx():
            logger.warning("quantline: Linux refuses AMX to this process; vLLM may fail without it")
    except Exception:
        logger.exception("quantline: AMX was not requested")
