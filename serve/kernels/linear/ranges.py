"""Activations that only some numbers of tokens need are left out of the graphs of the others.

vLLM traces a layer once, with plain and rounded activations as inputs of its op where the plan
reads both. It then compiles the graph for ranges of tokens, each on its own. Here such a range ends
where a plan changes its input, and a pass takes the other input out of each range's graph: a step
of one token then rounds nothing, and a prompt's norms write no plain activations. Without
torch.compile, or if vLLM has no ranges, both inputs are computed: slower, and just as right.

A range also ends at the largest captured number of tokens, and beyond it where a plan changes its
product: the pass puts the products themselves into the graphs beyond (`direct`).
"""

import functools
import logging
from itertools import pairwise
from typing import Any

import torch
from vllm.compilation.passes.inductor_pass import InductorPass, get_pass_context

from serve.kernels import op
from serve.kernels.attention.lowering import lower_rotations
from serve.kernels.direct import inline
from serve.kernels.linear.choice import CHANGE, FEW, MANY
from serve.kernels.op import Planned
from serve.kernels.rounding.fusing import fuse
from serve.kernels.rounding.lowering import lower
from serve.kernels.settings import ENTRY, OPTION, VERSION, add_to_graph_key

logger = logging.getLogger("vllm.quantline")
MOST_TOKENS = 1 << 30
MOST_RANGES = 5
"""Each one is compiled on its own, which takes seconds."""
INSTALLED = "_quantline_has_pass"
SAME_NUMBERS = (
    torch.ops.aten.view.default,
    torch.ops.aten.reshape.default,
    torch.ops.aten._to_copy.default,
    torch.ops.prims.convert_element_type.default,
)
"""What may stand between the op and the product with the scales."""


class InputsPass(InductorPass):  # type: ignore[misc]
    """Takes inputs out of our ops that no product of the compiled range reads, fuses the rounding
    that is left with what comes before, and inlines products where graphs are not captured. A key
    of an op has a hash of its plan, so vLLM's cache of graphs knows what this pass depends on;
    VERSION stands for the rest."""

    def __init__(self, captured: int) -> None:
        self.captured = captured
        """The most tokens of a captured CUDA graph."""

    def __call__(self, graph: torch.fx.Graph) -> None:
        op.register()  # a 16-bit model has no layer that did it
        tokens = get_pass_context().compile_range
        target = torch.ops.quantline.linear.default
        for node in graph.find_nodes(op="call_function", target=target):
            _trim(graph, node, tokens.start, tokens.end)
        try:
            fuse(graph)
            lower(graph)
        except Exception as error:  # a rounding that is not fused is slower, and just as right
            logger.warning("quantline: rounding is not fused: %s", error)
            logger.debug("quantline: rounding", exc_info=True)
        if tokens.start > self.captured:
            inline(graph, tokens.start, tokens.end)
            lower_rotations(graph)

    def uuid(self) -> str:
        return f"{super().uuid()} {VERSION} {self.captured}"


def _trim(graph: torch.fx.Graph, node: torch.fx.Node, start: int, end: int) -> None:
    x, rounded, scales, tensors, key, rows, *after = node.args
    planned = op.get(str(key))
    if planned is None or rounded is None:
        return
    kinds = reads_in(planned, start, end)
    if True not in kinds:
        if after and after[0]:
            if not _without_scaling(node, scales):
                return
            after = [False]
        rounded = scales = None
    if False not in kinds and isinstance(x, torch.fx.Node) and x.meta["val"].shape[1] != 0:
        x = _without_columns(graph, node, x, rounded)
    node.args = (x, rounded, scales, tensors, key, rows, *after)
    _update_traced_inputs(node, x, rounded is None)


def _without_scaling(node: torch.fx.Node, scales: Any) -> bool:
    """Takes out the product of the op's result with the scales; False where it is not found."""
    waiting = list(node.users)
    while waiting:
        user = waiting.pop()
        if user.target == torch.ops.aten.mul.Tensor and scales in user.args:
            (result,) = (argument for argument in user.args if argument is not scales)
            user.replace_all_uses_with(result)
            return True
        if user.target in SAME_NUMBERS:
            waiting += user.users
    return False


def _without_columns(
    graph: torch.fx.Graph, node: torch.fx.Node, x: torch.fx.Node, rounded: Any
) -> torch.fx.Node:
    """An empty tensor with the type of x and its number of tokens, which is that of the rounded
    ones: nothing is left that reads x."""
    value = x.meta["val"]
    tokens: Any = value.shape[0]
    with graph.inserting_before(node):
        size: Any = tokens
        if not isinstance(tokens, int):
            size = graph.call_function(torch.ops.aten.sym_size.int, (rounded, 0))
            size.meta["val"] = tokens
        empty = graph.call_function(
            torch.ops.aten.empty.memory_format,
            ([size, 0],),
            {"dtype": value.dtype, "device": value.device, "pin_memory": False},
        )
    empty.meta["val"] = value.new_empty((tokens, 0))
    return empty


def _update_traced_inputs(node: torch.fx.Node, x: Any, is_plain: bool) -> None:
    """Inductor keeps the strides that an op's inputs had when it was traced."""
    if "eager_input_vals" not in node.meta:
        return
    values, named = node.meta["eager_input_vals"]
    first = x.meta["val"] if isinstance(x, torch.fx.Node) else values[0]
    inputs = (None, None) if is_plain else values[1:3]
    node.meta["eager_input_vals"] = ((first, *inputs, *values[3:]), named)


def reads_in(planned: Planned, start: int, end: int) -> set[bool]:
    """Whether products for these numbers of tokens read rounded activations: both may be true."""
    steps = planned.plan.steps_in(start, end)
    return {planned.places[step.product][0].reads_rounded for step in steps}


def boundaries(planned: Planned) -> list[int]:
    """The numbers of tokens after which other inputs are read: some of those where `choice` lets
    them change."""
    parts = [(1, FEW), (FEW + 1, MANY), (MANY + 1, MOST_TOKENS)]
    return [
        before[1]
        for before, after in pairwise(parts)
        if reads_in(planned, *before) != reads_in(planned, *after)
    ]


def direct_boundaries(planned: Planned, captured: int) -> list[int]:
    """The ends of ranges in which one product can be called directly, the most useful first: there
    are few ranges."""
    begin, ends = captured, set[int]()
    for step in planned.plan.steps_in(captured + 1, MOST_TOKENS):
        if planned.places[step.product][0].traceable:
            ends |= {begin} if step.up_to is None else {begin, step.up_to}
        begin = step.up_to or MOST_TOKENS
    return sorted(ends, key=lambda end: (end not in (captured, CHANGE), end))


def split_ranges(planned: Planned) -> None:
    """Has vLLM compile a layer's graph in ranges that end where its plan changes its input or, for
    more tokens than are captured, its product, and run our pass over each of them. A range of one
    number of tokens is never made: vLLM tunes its kernels for a minute, and they are slower."""
    from vllm.config import get_current_vllm_config_or_none

    config = get_current_vllm_config_or_none()
    compilation = getattr(config, "compilation_config", None)
    ends = list(getattr(compilation, "compile_ranges_endpoints", None) or [])
    if not ends:  # vLLM compiles nothing
        return
    assert compilation is not None
    _install_pass()
    captured = captured_by(config)
    for end in boundaries(planned):
        _split(ends, end)
    for end in direct_boundaries(planned, captured):
        # Layers that are loaded later may change their inputs at these.
        _split(ends, end, reserved=(FEW, MANY))
    compilation.compile_ranges_endpoints = sorted(ends)
    add_to_graph_key(f"ranges {compilation.compile_ranges_endpoints} captured {captured}")


def split_at_captured() -> None:
    """Has vLLM compile graphs that are not captured apart from those that are, and run our pass
    over them: there, the host's work at each op counts."""
    from vllm.config import get_current_vllm_config_or_none

    config = get_current_vllm_config_or_none()
    compilation = getattr(config, "compilation_config", None)
    ends = list(getattr(compilation, "compile_ranges_endpoints", None) or [])
    if compilation is not None and ends:
        _install_pass()
        _split(ends, captured_by(config))
        compilation.compile_ranges_endpoints = sorted(ends)
        add_to_graph_key(f"ranges {compilation.compile_ranges_endpoints}")


def _split(ends: list[int], end: int, reserved: tuple[int, ...] = ()) -> None:
    """Has a range end here, unless there are enough of them with the reserved ends."""
    is_new = 1 < end < max(ends) and all(abs(end - other) > 1 for other in ends)
    if is_new and len({*ends, *reserved}) < MOST_RANGES:
        ends.append(end)


def captured_by(config: Any) -> int:
    """The most tokens that an engine captures in a CUDA graph; 0 where it captures none."""
    return getattr(config.compilation_config, "max_cudagraph_capture_size", None) or 0


def _install_pass() -> None:
    """Adds the pass to those of every engine of this process that has our entry, once."""
    from vllm.compilation.passes.pass_manager import PostGradPassManager

    original = PostGradPassManager.configure
    if getattr(original, INSTALLED, False):
        return

    @functools.wraps(original)
    def configure(self: Any, config: Any) -> None:
        original(self, config)
        if ENTRY in (getattr(config, OPTION, None) or {}):
            self.add(InputsPass(captured_by(config)))

    setattr(configure, INSTALLED, True)
    PostGradPassManager.configure = configure
