"""Hands the kernel that rotates to Inductor, in graphs that vLLM does not capture.

Our op costs the host some 40 microseconds a call. In such a graph nothing is left to attention: the
op leaves a note where it does so, and this kernel none. Where it cannot be handed over, the op
stays.
"""

import logging
import math
import operator
from typing import Any

import torch
from torch.fx import Graph, Node

from serve.kernels.attention import rotate_op
from serve.kernels.attention.launch import ROTATED, ROTATING_WARPS
from serve.kernels.products.graph_launch import launch_options, with_warps

logger = logging.getLogger("vllm.quantline")
CHANGED = 1
"""The place of the changed tensor among the results of a functional op without others."""


def lower_rotations(graph: Graph) -> int:
    """Puts the kernel in place of our op on a GPU; gives the number of them."""
    try:
        return sum(_lower(graph, node) for node in _rotations(graph))
    except Exception as error:
        logger.warning("quantline: rotating is not launched directly: %s", error)
        logger.debug("quantline: rotating", exc_info=True)
        return 0


def _rotations(graph: Graph) -> list[Node]:
    """The nodes of our op, which changes its first tensor. In a graph they are functional, in
    either of PyTorch's ways; vLLM asks for the older one."""
    from torch._higher_order_ops import auto_functionalize

    rotate_op.register()
    return [
        node
        for functional in (
            auto_functionalize.auto_functionalized,
            auto_functionalize.auto_functionalized_v2,
        )
        for node in graph.find_nodes(op="call_function", target=functional)
        if node.args[0] is torch.ops.quantline.rotate.default
    ]


def _changed(given: dict[str, Any]) -> Node | None:
    """The tensor that a node changes; None where it is a part of another one."""
    if "qkv" in given:
        found: Node = given["qkv"]
        return found
    bases = given["_all_bases"]
    return bases[0] if len(bases) == 1 and given["_qkv_base_index"] == 0 else None


def _lower(graph: Graph, node: Node) -> bool:
    from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_functional

    given: dict[str, Any] = dict(node.kwargs)
    qkv = _changed(given)
    value = qkv.meta.get("val") if qkv is not None else None
    if value is None or not value.is_cuda or value.dim() != 2 or value.stride(1) != 1:
        return False
    items = list(node.users)
    is_known = all(item.target is operator.getitem and item.args[1] == CHANGED for item in items)
    if not is_known or not isinstance(value.stride(0), int):
        return False
    heads, key_heads = given["heads"], given["key_heads"]
    has_norm = given["q_weight"] is not None
    inputs = {
        "positions_ptr": given["positions"],
        "q_weight_ptr": given["q_weight"] if has_norm else given["rotations"],
        "k_weight_ptr": given["k_weight"] if has_norm else given["rotations"],
        "rotations_ptr": given["rotations"],
    }
    constants = {
        "eps": given["epsilon"], "stride": value.stride(0), "HEADS": heads, "KEYS": key_heads,
        "ROWS": ROTATED, "WIDTH": given["rotations"].meta["val"].shape[1], "NORM": has_norm,
    }  # fmt: skip
    with graph.inserting_before(node):
        tokens = graph.call_function(torch.ops.aten.sym_size.int, (qkv, 0))
        tokens.meta["val"] = value.shape[0]
        grid = (tokens, math.ceil((heads + key_heads) / ROTATED), 1)
        options = launch_options(_kernel(), grid, inputs, {"qkv_ptr": qkv}, constants)
        called = graph.call_function(triton_kernel_wrapper_functional, (), options)
        called.meta["val"] = {"qkv_ptr": value}
        changed = graph.call_function(operator.getitem, (called, "qkv_ptr"))
        changed.meta["val"] = value
    for item in items:
        item.replace_all_uses_with(changed)
        graph.erase_node(item)
    graph.erase_node(node)
    return True


def _kernel() -> Any:
    from serve.kernels.attention.triton_kernels.rope import rope_kernel

    return with_warps(rope_kernel, ROTATING_WARPS)
