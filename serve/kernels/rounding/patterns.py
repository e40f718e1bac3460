"""What stands before a rounding in a compiled graph."""

import operator
from functools import cache
from typing import Any

import torch
from torch.fx import Node

VIEWS = (torch.ops.aten.view.default, torch.ops.aten.reshape.default)
CONVERSIONS = (torch.ops.prims.convert_element_type.default, torch.ops.aten._to_copy.default)
MOST_STEPS = 16
"""Of a decomposed silu."""


def value_of(node: Any) -> Any:
    """The fake tensor of a node; None where it has none, as for None itself."""
    return node.meta.get("val") if isinstance(node, Node) else None


def behind_views(node: Any) -> Node:
    """What a node is a view of, as far as it has the same shape."""
    assert isinstance(node, Node)
    while node.target in VIEWS and _is_alike(node, node.args[0]):
        node = node.args[0]
        assert isinstance(node, Node)
    return node


def _is_alike(node: Node, other: Any) -> bool:
    """Whether both are [tokens, K] with the same K."""
    one, two = value_of(node), value_of(other)
    return one is not None and two is not None and one.dim() == two.dim() == 2 and (
        one.shape[1] == two.shape[1]
    )  # fmt: skip


def users_behind_views(node: Node) -> list[Node]:
    """All that reads a node or a view of it, other than the views."""
    users, waiting = [], list(node.users)
    while waiting:
        user = waiting.pop()
        if user.target in VIEWS:
            waiting += user.users
        else:
            users.append(user)
    return users


def is_only_user(source: Node, node: Node) -> bool:
    """Whether nothing else reads the source but for its size."""
    size = torch.ops.aten.sym_size.int
    return all(user is node or user.target == size for user in users_behind_views(source))


def norm_of(source: Node) -> Node | None:
    """The norm of a sum whose first result the source is; with a weight, over the whole row."""
    is_result = source.target is operator.getitem and source.args[1] == 0
    norm = source.args[0] if is_result else None
    if not isinstance(norm, Node) or norm.kwargs or norm.target is not _norm_op():
        return None
    x, _, weight, _, *variance_size = norm.args
    has_weight = isinstance(weight, Node) and value_of(weight).shape == value_of(x).shape[-1:]
    return norm if has_weight and variance_size in ([], [None]) else None


def _norm_op() -> Any | None:
    """vLLM's; None where it has not defined it."""
    op = getattr(torch.ops.vllm_ir, "fused_add_rms_norm", None)
    return None if op is None else op.default


def gates_and_ups(source: Node) -> Node | None:
    """The tensor of which the source is silu(first half) * second half."""
    if source.target != torch.ops.aten.mul.Tensor:
        return None
    silu, up = source.args
    x = _halved(up, 1)
    gate = _first_slice(silu)
    if x is None or gate is None or _halved(gate, 0) is not x:
        return None
    dtype = value_of(x).dtype
    return x if _is_same(silu, _decomposed_silu(dtype), gate) else None


def _halved(node: Any, half: int) -> Node | None:
    """The tensor of whose columns the node is the first or second half."""
    if not isinstance(node, Node) or node.target != torch.ops.aten.slice.Tensor or node.kwargs:
        return None
    x, dim, start, end, *step = (*node.args, None, None)[: max(4, len(node.args))]
    value = value_of(x)
    if value is None or value.dim() != 2 or dim not in (1, -1) or step not in ([], [1], [None]):
        return None
    width = int(value.shape[1])
    columns = range(width)[slice(start, end)] if _are_numbers(start, end) else range(0)
    right = range(width)[half * (width // 2) : (half + 1) * (width // 2)]
    return x if isinstance(x, Node) and width % 2 == 0 and columns == right else None


def _are_numbers(*ends: Any) -> bool:
    return all(end is None or isinstance(end, int) for end in ends)


def _first_slice(node: Any) -> Node | None:
    """The slice that a chain of operations begins with."""
    for _ in range(MOST_STEPS):
        if not isinstance(node, Node) or node.target == torch.ops.aten.slice.Tensor:
            break
        node = next((one for one in node.args if isinstance(one, Node)), None)
    return node if isinstance(node, Node) else None


@cache
def _decomposed_silu(dtype: torch.dtype) -> Node:
    """silu as Inductor decomposes it, which versions of PyTorch may do differently."""
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    def silu(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(x)

    example = torch.empty(2, 2, dtype=dtype, device="cpu")
    traced = make_fx(silu, decomposition_table=select_decomp_table())(example)
    (output,) = traced.graph.find_nodes(op="output")
    (result,) = output.all_input_nodes
    return result


def _is_same(node: Any, expected: Any, gate: Node) -> bool:
    """Whether a node computes of `gate` what the expected one computes of its graph's input."""
    if not isinstance(expected, Node):
        return bool(type(node) is type(expected) and node == expected)
    if expected.op == "placeholder":
        return node is gate
    if not isinstance(node, Node) or node.target != expected.target or node.kwargs:
        return False
    pairs = zip(node.args, expected.args, strict=False)
    return len(node.args) == len(expected.args) and all(
        _is_same(one, other, gate) for one, other in pairs
    )


def without_scaling(x: Node) -> tuple[Node, Node | None]:
    """Activations before the scales of their tokens were applied, and these; else x and None."""
    dtype = value_of(x).dtype
    product = _converted(behind_views(x), dtype)
    if product is None or product.target != torch.ops.aten.mul.Tensor:
        return x, None
    raw, scales = product.args
    plain = _converted(raw, torch.float32)
    value, by = value_of(plain), value_of(scales)
    if value is None or by is None or value.dtype != dtype or value.stride(1) != 1:
        return x, None
    is_by_token = by.dim() == 2 and by.shape[1] == 1 and by.dtype == torch.float32
    is_alike = value.dim() == 2 and value.shape[1] == value_of(x).shape[1]
    return (plain, scales) if is_by_token and is_alike and plain is not None else (x, None)


def _converted(node: Any, dtype: torch.dtype) -> Node | None:
    """What a node converts to that type; None where it does not."""
    if not isinstance(node, Node) or node.target not in CONVERSIONS:
        return None
    source = node.args[0]
    is_right = value_of(node) is not None and value_of(node).dtype == dtype
    return source if is_right and isinstance(source, Node) else None
