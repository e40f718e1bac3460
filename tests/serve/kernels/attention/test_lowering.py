"""Our op that rotates becomes a kernel that Inductor launches, in graphs of a GPU, which needs none
here."""

from typing import Any

import pytest
import torch
from torch._higher_order_ops import auto_functionalize
from torch._higher_order_ops.triton_kernel_wrap import (
    kernel_side_table,
    triton_kernel_wrapper_functional,
)
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from serve.kernels.attention import lowering
from serve.kernels.attention.lowering import lower_rotations
from serve.kernels.attention.rotate_op import register

HEADS, KEYS, WIDTH = 8, 2, 64
COLUMNS = (HEADS + 2 * KEYS) * WIDTH
KERNEL = object()


def graph_of(device: str, norm: bool, is_new: bool, base: int = 0) -> Graph:
    """As torch.compile makes it of a product, our op and what reads its result."""
    register()
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    tokens = mode.from_tensor(torch.empty(700, device="meta")).shape[0]
    graph = Graph()

    def placeholder(name: str, *shape: Any) -> Any:
        node = graph.placeholder(name)
        with mode:
            node.meta["val"] = torch.empty(shape, dtype=torch.bfloat16, device=device)
        return node

    qkv, positions = placeholder("qkv", tokens, COLUMNS), placeholder("positions", tokens)
    given = {
        "positions": positions, "rotations": placeholder("rotations", 1024, WIDTH),
        "q_weight": placeholder("q", WIDTH) if norm else None,
        "k_weight": placeholder("k", WIDTH) if norm else None,
        "epsilon": 1e-6, "heads": HEADS, "key_heads": KEYS,
    }  # fmt: skip
    op = torch.ops.quantline.rotate.default
    if is_new:
        functional: Any = auto_functionalize.auto_functionalized_v2
        given |= {"_qkv_base_index": base, "_all_bases": [qkv]}
    else:
        functional = auto_functionalize.auto_functionalized
        given |= {"qkv": qkv}
    node = graph.call_function(functional, (op,), given)
    item = graph.call_function(__import__("operator").getitem, (node, 1))
    item.meta["val"] = qkv.meta["val"]
    graph.output((item,))
    return graph


@pytest.fixture(autouse=True)
def _kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object in place of the kernel: the main environment has no Triton."""
    monkeypatch.setattr(lowering, "_kernel", lambda: KERNEL)


@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize("norm", [False, True])
def test_the_op_becomes_a_kernel(norm: bool, is_new: bool) -> None:
    graph = graph_of("cuda", norm, is_new)
    assert lower_rotations(graph) == 1
    graph.lint()
    (call,) = graph.find_nodes(op="call_function", target=triton_kernel_wrapper_functional)
    assert kernel_side_table.get_kernel(call.kwargs["kernel_idx"]) is KERNEL
    constants = kernel_side_table.get_constant_args(call.kwargs["constant_args_idx"])
    assert constants["NORM"] is norm
    assert (constants["HEADS"], constants["KEYS"], constants["WIDTH"]) == (HEADS, KEYS, WIDTH)
    assert constants["stride"] == COLUMNS
    assert call.kwargs["tensors_to_clone"] == ["qkv_ptr"]
    ((_, programs, _),) = call.kwargs["grid"]
    assert programs == 2, "eight heads each"
    (result,) = graph.output_node().args[0]
    assert result.args == (call, "qkv_ptr")


@pytest.mark.parametrize(
    "graph", [graph_of("cpu", True, False), graph_of("cuda", True, True, base=1)]
)
def test_other_ops_stay(graph: Graph) -> None:
    before = str(graph)
    assert lower_rotations(graph) == 0
    assert str(graph) == before
