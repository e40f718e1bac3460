"""Puts the ops of a product in place of ours, in graphs that vLLM does not capture.

Our op costs the host about 35 microseconds a call: PyTorch's dispatcher, our Python, the op of the
product. There are four of them in a layer. A captured CUDA graph replays them for free; elsewhere
the GPU waits for the host where prompts are short. If one product runs all numbers of tokens of a
graph, there is nothing to choose: the ops of `Product.direct` are traced into the graph, and
Inductor's code calls them.
"""

import logging
from functools import cache
from typing import Any

import torch
from torch._inductor.pattern_matcher import fwd_only
from torch.fx import Graph, GraphModule, Node

from serve.kernels import op
from serve.kernels.op import Call
from serve.kernels.products.product import Inputs

logger = logging.getLogger("vllm.quantline")


def inline(graph: Graph, start: int, end: int) -> int:
    """Inlines the products of a graph for these numbers of tokens; gives how many. An op whose
    product cannot be traced stays: slower, and just as right."""
    target = torch.ops.quantline.linear.default
    nodes = list(graph.find_nodes(op="call_function", target=target))
    return sum(_inline_one(graph, node, start, end) for node in nodes)


def _inline_one(graph: Graph, node: Node, start: int, end: int) -> bool:
    planned = op.get(str(node.args[4]))
    call = planned.only_call(start, end) if planned is not None else None
    if call is None or not call.product.traceable:
        return False
    try:
        _replace(graph, node, _traced(node, call))
    except Exception as error:  # an engine must not end for that
        _warn_once(call.product.name, str(error))
        logger.debug("quantline: %s", call.product.name, exc_info=True)
        return False
    return True


@cache
def _warn_once(product: str, reason: str) -> None:
    """A model has many layers of a kind, and vLLM compiles each for several ranges of tokens."""
    logger.warning("quantline: %s is not called directly: %s", product, reason)


def _replace(graph: Graph, node: Node, module: GraphModule) -> None:
    given = module.graph.find_nodes(op="placeholder")
    copies: dict[Node, Node] = dict(zip(given, node.all_input_nodes, strict=True))
    with graph.inserting_before(node):
        result: Any = graph.graph_copy(module.graph, copies)
    node.replace_all_uses_with(result)
    graph.erase_node(node)


def _traced(node: Node, call: Call) -> GraphModule:
    """What the product computes of the inputs of our op. Raises where that is another result, or
    cannot be copied into a graph."""
    inputs, expected = node.all_input_nodes, node.meta["val"]

    def product(*values: torch.Tensor) -> torch.Tensor:
        value_of = dict(zip(inputs, values, strict=True))
        x, rounded, scales, tensors, _, _, *after = torch.fx.map_arg(
            node.args, lambda argument: value_of[argument]
        )
        given = Inputs(x, rounded, scales)
        return call.run(call.product.direct, given, tensors, bool(after and after[0]))

    with expected.fake_mode:
        module: GraphModule = fwd_only(product, [one.meta["val"] for one in inputs])
    (result,) = module.graph.output_node().all_input_nodes
    found, right = _described(result.meta["val"]), _described(expected)
    if found != right:
        raise TypeError(f"gives {found}, not {right} (type, shape, strides)")
    if module.graph.find_nodes(op="get_attr"):
        raise TypeError("makes a constant tensor")
    return module


def _described(value: torch.Tensor) -> tuple[Any, ...]:
    return value.dtype, tuple(value.shape), value.stride()
