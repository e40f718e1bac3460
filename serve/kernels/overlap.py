"""Kernels of compiled graphs begin before the one in front of them has ended.

Between two kernels of a step the GPU drains and fills again. With programmatic dependent launch, a
kernel is on its multiprocessors by then and waits for its inputs there. Our products are launched
so, and fetch their weights while they wait. Here the kernels that Inductor writes follow them: in
all graphs, or in those for steps of one token, which vLLM then compiles for that size alone.
"""

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from conf.schema.kernels import ONE_TOKEN_OVERLAP, OVERLAP
from serve.kernels.imports import after_import
from serve.kernels.settings import Settings, settings_of

logger = logging.getLogger("vllm.quantline")
INDUCTOR_OPTION = "triton.enable_pdl"
COMPILED_BY_VLLM = 3
"""vLLM's CompilationMode.VLLM_COMPILE; the others compile no graph for one size."""
ONE = 1
INTERFACE, BACKEND = "vllm.compilation.compiler_interface", "vllm.compilation.piecewise_backend"
DONE = "_quantline_overlaps"


class _Compiling:
    """What the graphs that are being compiled are for."""

    for_one_token = False


def overlap_kernels(config: Any, settings: Settings) -> None:
    """Has Inductor write the kernels of an engine so, where its settings ask for it. A user's own
    value of the option stays. Settings and option are part of the key of the engine's graphs."""
    compilation: Any = getattr(config, "compilation_config", None)
    options = getattr(compilation, "inductor_compile_config", None)
    if OVERLAP in settings.families:
        if isinstance(options, dict) and _is_known():
            options.setdefault(INDUCTOR_OPTION, True)
        else:
            logger.info("quantline: kernels do not overlap: there is no option %s", INDUCTOR_OPTION)
    elif _is_for_one_token(settings):
        obstacle = _obstacle(config, compilation)
        if obstacle:
            logger.info("quantline: kernels of one token do not overlap: %s", obstacle)
            return
        compilation.compile_sizes = sorted({ONE, *(compilation.compile_sizes or ())})


def _is_for_one_token(settings: Settings) -> bool:
    """Whether graphs of one token are to overlap alone: with the other family, all do."""
    return ONE_TOKEN_OVERLAP in settings.families and OVERLAP not in settings.families


def _obstacle(config: Any, compilation: Any) -> str:
    """Why there can be no graph for one token; empty where there can."""
    if not _is_known():
        return f"there is no option {INDUCTOR_OPTION}"
    if getattr(compilation, "mode", None) != COMPILED_BY_VLLM:
        return "the engine compiles no graphs"
    captured = getattr(compilation, "cudagraph_capture_sizes", None) or ()
    if ONE not in captured or getattr(config, "speculative_config", None) is not None:
        return "no CUDA graph has one token"
    if getattr(compilation, "compile_mm_encoder", False):
        return "the encoder would be compiled for one token, too"
    return ""


def register() -> None:
    """Has vLLM's compiler ask us in each process that compiles."""
    for name, hook in HOOKS.items():
        after_import(name, hook)


def _hook_safely(hook: Callable[[ModuleType], None], module: ModuleType) -> None:
    """A vLLM without these names compiles as it would without us."""
    try:
        hook(module)
    except Exception as error:
        logger.warning("quantline: kernels of one token do not overlap: %s", error)


def _note_the_engine(module: ModuleType) -> None:
    """While the graphs of an engine are compiled, its settings are known."""
    backend: Any = module.PiecewiseBackend
    original = backend.compile_all_ranges
    if getattr(original, DONE, False):
        return

    @functools.wraps(original)
    def compile_all_ranges(self: Any) -> None:
        with _compiling(self.vllm_config):
            original(self)

    setattr(compile_all_ranges, DONE, True)
    backend.compile_all_ranges = compile_all_ranges


def _ask_for_each_size(module: ModuleType) -> None:
    """Adds the option to those of graphs for one token. vLLM would also tune graphs for a single
    size. These stay as the graphs for ranges are, but for the option: tuning makes the first start
    longer, and was not measured with it."""
    interface: Any = module
    original = interface.set_inductor_config
    if getattr(original, DONE, False):
        return

    @functools.wraps(original)
    def set_inductor_config(config: dict[str, Any], compile_range: Any) -> None:
        before = dict(config)
        original(config, compile_range)
        if _Compiling.for_one_token and compile_range.start == compile_range.end == ONE:
            config.clear()
            config.update({INDUCTOR_OPTION: True} | before)

    setattr(set_inductor_config, DONE, True)
    interface.set_inductor_config = set_inductor_config


@contextmanager
def _compiling(config: Any) -> Iterator[None]:
    before = _Compiling.for_one_token
    compilation: Any = getattr(config, "compilation_config", None)
    wants = _is_for_one_token(settings_of(config))
    _Compiling.for_one_token = wants and not _obstacle(config, compilation)
    try:
        yield
    finally:
        _Compiling.for_one_token = before


def _is_known() -> bool:
    from torch._inductor import config

    return INDUCTOR_OPTION in config.get_config_copy()


HOOKS = {
    INTERFACE: functools.partial(_hook_safely, _ask_for_each_size),
    BACKEND: functools.partial(_hook_safely, _note_the_engine),
}
"""By module of vLLM. One object for each, so that a second request is known to be the same."""
