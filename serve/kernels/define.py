"""Defines our custom ops, quantline::NAME."""

from collections.abc import Callable
from typing import Any

import torch

LIBRARY = "quantline"
EXACT_STRIDES = "needs_exact_strides"
FIXED_ORDER = torch.Tag.needs_fixed_stride_order
"""Inductor may choose other strides for an op's inputs, in the same order; also the stricter tag of
older versions."""
_LIBRARIES: dict[str, torch.library.Library] = {}
"""Keeps the definitions alive: a library that is collected takes its op along."""


def define(
    name: str,
    schema: str,
    on_gpu: Callable[..., Any],
    on_cpu: Callable[..., Any],
    fake: Callable[..., Any],
    exact_strides: bool = False,
) -> None:
    """Defines an op, once in a process. `schema` is what follows its name. With `exact_strides`,
    Inductor gives it inputs with the strides that were traced."""
    if name in _LIBRARIES:
        return
    library = torch.library.Library(LIBRARY, "FRAGMENT")
    tag = getattr(torch.Tag, EXACT_STRIDES, FIXED_ORDER) if exact_strides else FIXED_ORDER
    library.define(f"{name}{schema}", tags=(tag,))
    library.impl(name, on_gpu, "CUDA")
    library.impl(name, on_cpu, "CPU")
    library._register_fake(name, fake)
    _LIBRARIES[name] = library
