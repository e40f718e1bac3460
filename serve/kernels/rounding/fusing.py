"""Fuses rounding with the RMSNorm or silu-and-multiply before it, in a compiled graph.

vLLM's own passes have run by then, and a norm is still one node of vLLM's IR. A product may leave
the scales of its activations to what comes next (`Product.scales_after`): then the fused op applies
them. Rounding after anything else stays an op of its own.
"""

import logging
import operator
from typing import Any

import torch
from torch.fx import Graph, Node

from serve.kernels.rounding import ops
from serve.kernels.rounding.launch import takes
from serve.kernels.rounding.patterns import (
    behind_views,
    gates_and_ups,
    is_only_user,
    norm_of,
    users_behind_views,
    value_of,
    without_scaling,
)

logger = logging.getLogger("vllm.quantline")
_SAID: set[str] = set()


def fuse(graph: Graph) -> int:
    """Puts fused ops into the graph; gives their number."""
    ops.register()
    graph.eliminate_dead_code()  # rounding that a range of few tokens does not need
    target = torch.ops.quantline.round_tokens.default
    nodes = list(graph.find_nodes(op="call_function", target=target))
    fused = sum(_fuse_one(graph, node) for node in nodes)
    if fused:
        graph.eliminate_dead_code()
    return fused


def _fuse_one(graph: Graph, node: Node) -> bool:
    source = behind_views(node.args[0])
    if is_only_user(source, node) and (
        _fuse_norm(graph, node, source) or _fuse_silu(graph, node, source)
    ):
        return True
    name = str(source.target)
    if name not in _SAID:
        _SAID.add(name)
        logger.debug("quantline: rounding after %s is not fused", name)
    return False


def _fuse_norm(graph: Graph, node: Node, source: Node) -> bool:
    """After the first result of an RMSNorm of a sum."""
    norm = norm_of(source)
    if norm is None:
        return False
    x, residual, weight, epsilon, *_ = norm.args
    if not (_has_rows(x) and _has_rows(residual) and value_of(x).dtype == value_of(residual).dtype):
        return False
    given, x_scales = without_scaling(x)
    fused = _inserted(
        graph, norm, torch.ops.quantline.add_norm_round.default,
        (given, x_scales, residual, weight, epsilon, node.args[1]),
    )  # fmt: skip
    codes, scales, total = _results(graph, fused)
    _use_instead(norm, {1: total})
    _replace(node, source, codes, scales)
    return True


def _fuse_silu(graph: Graph, node: Node, source: Node) -> bool:
    """After silu(gate) * up, both halves of one tensor."""
    x = gates_and_ups(source)
    if x is None or not _has_rows(x):
        return False
    given, x_scales = without_scaling(x)
    fused = _inserted(
        graph, source, torch.ops.quantline.silu_mul_round.default,
        (given, x_scales, node.args[1]),
    )  # fmt: skip
    codes, scales = _results(graph, fused)
    _replace(node, source, codes, scales)
    return True


def _has_rows(node: Any) -> bool:
    """Whether it is [tokens, K] as the kernels take it, the numbers of a row side by side."""
    value = value_of(node)
    return value is not None and takes(value) and value.stride(1) == 1


def _inserted(graph: Graph, before: Node, target: Any, args: tuple[Any, ...]) -> Node:
    with graph.inserting_before(before):
        node = graph.call_function(target, args)
    node.meta = {name: before.meta[name] for name in ("stack_trace",) if name in before.meta}
    node.meta["val"] = target(*torch.fx.map_arg(args, value_of))
    return node


def _results(graph: Graph, node: Node) -> list[Node]:
    """A node for each of an op's results."""
    results: list[Node] = []
    for place, value in enumerate(node.meta["val"]):
        with graph.inserting_after(results[-1] if results else node):
            results.append(graph.call_function(operator.getitem, (node, place)))
        results[-1].meta["val"] = value
    return results


def _use_instead(node: Node, results: dict[int, Node]) -> None:
    """Puts other nodes in place of an op's results."""
    for item in list(node.users):
        place = item.args[1] if item.target is operator.getitem else None
        if isinstance(place, int) and place in results:
            item.replace_all_uses_with(results[place])


def _replace(node: Node, source: Node, codes: Node, scales: Node) -> None:
    """Puts the results of a fused op in place of those of the rounding, and of the sizes of what
    was rounded."""
    _use_instead(node, {0: codes, 1: scales})
    for user in users_behind_views(source):
        if user.target == torch.ops.aten.sym_size.int:
            user.args = (codes, *user.args[1:])
