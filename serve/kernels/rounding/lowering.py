"""Hands the kernels of our rounding ops to Inductor, which then launches them as its own.

An op costs the host about 30 microseconds a call: PyTorch's dispatcher, our Python, Triton's. There
are four of them in a layer, and outside of CUDA graphs the GPU would wait for them where prompts
are short. Inductor's launch takes a fraction of that. An op that cannot be handed over stays.
"""

import operator
from typing import Any

import torch
from torch.fx import Graph, Node

from serve.kernels.products.graph_launch import launch_options, with_warps
from serve.kernels.rounding.launch import (
    Launch,
    add_norm_round_launch,
    round_launch,
    silu_mul_round_launch,
)
from serve.kernels.rounding.patterns import value_of


def lower(graph: Graph) -> int:
    """Puts kernels in place of our ops on a GPU; gives their number."""
    ops = torch.ops.quantline
    lowered = 0
    for op in (ops.round_tokens, ops.silu_mul_round, ops.add_norm_round):
        for node in list(graph.find_nodes(op="call_function", target=op.default)):
            launch = launch_of(node)
            if launch is not None:
                _replace(graph, node, launch)
                lowered += 1
    return lowered


def launch_of(node: Node) -> Launch | None:
    """The launch of an op's kernel, with nodes in the place of tensors; None for another device, or
    for strides that are not known."""
    x, *others = node.args
    value = value_of(x)
    if value is None or not value.is_cuda or not _has_known_rows(value):
        return None
    if node.target == torch.ops.quantline.round_tokens.default:
        return round_launch(x, bool(others[0]), like=value)
    if node.target == torch.ops.quantline.silu_mul_round.default:
        return silu_mul_round_launch(x, others[0], bool(others[1]), like=value)
    x_scales, residual, weight, epsilon, floats = others
    after = value_of(residual)
    if after is None or not _has_known_rows(after) or not isinstance(epsilon, float):
        return None
    return add_norm_round_launch(
        x, x_scales, residual, weight, epsilon, bool(floats), like=value,
        residual_stride=after.stride(0),
    )  # fmt: skip


def _has_known_rows(value: torch.Tensor) -> bool:
    return value.dim() == 2 and value.stride(1) == 1 and isinstance(value.stride(0), int)


def _replace(graph: Graph, node: Node, launch: Launch) -> None:
    results = node.meta["val"]
    with graph.inserting_before(node):
        tokens = _size(graph, node.args[0], launch.tokens)
        outputs = {
            name: _empty(graph, tokens, shape[1], result)
            for (name, shape, _), result in zip(launch.outputs, results, strict=True)
        }
        programs = _programs(graph, tokens, launch)
        called = _called(graph, launch, tokens, outputs, programs)
        called.meta["val"] = {name: value_of(output) for name, output in outputs.items()}
        items = []
        for name, output in outputs.items():
            items.append(graph.call_function(operator.getitem, (called, name)))
            items[-1].meta["val"] = value_of(output)
    for user in list(node.users):
        user.replace_all_uses_with(items[user.args[1]])
        graph.erase_node(user)
    graph.erase_node(node)


def _size(graph: Graph, x: Any, tokens: Any) -> Any:
    if isinstance(tokens, int):
        return tokens
    size = graph.call_function(torch.ops.aten.sym_size.int, (x, 0))
    size.meta["val"] = tokens
    return size


def _empty(graph: Graph, tokens: Any, columns: Any, value: torch.Tensor) -> Node:
    options = {"dtype": value.dtype, "device": value.device, "pin_memory": False}
    empty = graph.call_function(torch.ops.aten.empty.memory_format, ([tokens, columns],), options)
    empty.meta["val"] = value
    return empty


def _programs(graph: Graph, tokens: Any, launch: Launch) -> Any:
    """Rows, divided by those of a program and rounded up."""
    rows = launch.cut.rows
    if isinstance(tokens, int) or rows == 1:
        return tokens if rows == 1 else -(-tokens // rows)
    more = graph.call_function(operator.add, (tokens, rows - 1))
    more.meta["val"] = launch.tokens + (rows - 1)
    programs = graph.call_function(operator.floordiv, (more, rows))
    programs.meta["val"] = more.meta["val"] // rows
    return programs


def _called(
    graph: Graph, launch: Launch, tokens: Any, outputs: dict[str, Node], programs: Any
) -> Node:
    from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_functional

    numbers = {**launch.numbers, "tokens": tokens}
    known = {name: number for name, number in numbers.items() if not isinstance(number, Node)}
    unknown = {name: number for name, number in numbers.items() if isinstance(number, Node)}
    options = launch_options(
        kernel_of(launch.kernel, launch.cut.warps),
        (programs, 1, 1),
        {**launch.tensors, **unknown},
        outputs,
        {**launch.constants, **known},
    )
    return graph.call_function(triton_kernel_wrapper_functional, (), options)


def kernel_of(name: str, warps: int) -> Any:
    """A kernel that is always launched with so many warps."""
    from serve.kernels.products.triton_kernels import rounding

    return with_warps(getattr(rounding, name), warps)
