"""Kernels of compiled graphs begin before the one in front of them has ended.

Between two kernels of a step the GPU drains and fills again. With programmatic dependent launch, a
kernel is on its multiprocessors by then and waits for its inputs there. Our products are launched
so, and fetch their weights while they wait. Here the kernels that Inductor writes follow them.
"""

import logging
from typing import Any

logger = logging.getLogger("vllm.quantline")
INDUCTOR_OPTION = "triton.enable_pdl"


def overlap_kernels(config: Any) -> None:
    """Has Inductor write the kernels of an engine so. A user's own value of the option stays. The
    option is part of the key of the engine's compiled graphs."""
    compilation = getattr(config, "compilation_config", None)
    options = getattr(compilation, "inductor_compile_config", None)
    if not isinstance(options, dict) or not _is_known():
        logger.info("quantline: kernels do not overlap: there is no option %s", INDUCTOR_OPTION)
        return
    options.setdefault(INDUCTOR_OPTION, True)


def _is_known() -> bool:
    from torch._inductor import config

    return INDUCTOR_OPTION in config.get_config_copy()
