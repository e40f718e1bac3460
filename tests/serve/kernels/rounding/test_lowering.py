"""Our ops become kernels that Inductor launches, in graphs of a GPU, which needs none here."""

import operator
from typing import Any

import pytest
import torch
from torch._higher_order_ops.triton_kernel_wrap import (
    kernel_side_table,
    triton_kernel_wrapper_functional,
)
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from serve.kernels.rounding import lowering, ops
from serve.kernels.rounding.lowering import lower

WIDTH = 512
KERNELS = {"round_kernel": object(), "silu_mul_round_kernel": object()}


def forward(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    codes, scales = torch.ops.quantline.round_tokens(x, False)
    more, others = torch.ops.quantline.silu_mul_round(x, scales, True)
    return codes, more, others


def traced(device: str) -> torch.fx.GraphModule:
    ops.register()
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    tokens = mode.from_tensor(torch.empty(40, device="meta")).shape[0]
    with mode:
        x = torch.empty((tokens, WIDTH), dtype=torch.bfloat16, device=device)
        return make_fx(forward)(x)


@pytest.fixture
def _kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects in place of kernels: the main environment has no Triton."""
    monkeypatch.setattr(lowering, "kernel_of", lambda name, warps: KERNELS[name])


@pytest.mark.usefixtures("_kernels")
def test_ops_become_kernels() -> None:
    module = traced("cuda")
    assert lower(module.graph) == 2
    module.graph.lint()
    calls: list[Any] = list(
        module.graph.find_nodes(op="call_function", target=triton_kernel_wrapper_functional)
    )
    assert [kernel_side_table.get_kernel(call.kwargs["kernel_idx"]) for call in calls] == list(
        KERNELS.values()
    )
    first, second = (call.kwargs for call in calls)
    constants = kernel_side_table.get_constant_args(first["constant_args_idx"])
    assert constants["K"] == WIDTH
    assert constants["x_stride"] == WIDTH
    assert not constants["FLOATS"]
    ((programs, *_),) = first["grid"]
    assert programs.target is operator.floordiv, "four rows a program"
    constants = kernel_side_table.get_constant_args(second["constant_args_idx"])
    assert (constants["K"], constants["SCALED"], constants["FLOATS"]) == (WIDTH // 2, True, True)
    assert second["kwargs"]["x_scales_ptr"].args == (calls[0], "scales_ptr")
    assert second["tensors_to_clone"] == ["codes_ptr", "scales_ptr"]
    (output,) = module.graph.find_nodes(op="output")
    values = [node.meta["val"] for node in output.all_input_nodes]
    assert [value.dtype for value in values] == [torch.int8, torch.float8_e4m3fn, torch.float32]


def test_a_cpu_keeps_the_ops() -> None:
    module = traced("cpu")
    before = str(module.graph)
    assert lower(module.graph) == 0
    assert str(module.graph) == before
