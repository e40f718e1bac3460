"""The part of a decoder layer between two attentions, as vLLM traces it with kernels of ours."""

from typing import Any

import torch
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx

from serve.kernels import op
from serve.kernels.linear.loading import LoadedLayer, multiply
from serve.kernels.plans.plan import Plan, Step
from serve.kernels.products.product import Inputs, Options, Weight
from serve.kernels.rounding import ops
from tests.serve.kernels.linear.made import OwnInRounded

WIDTH, INNER = 128, 192
EPSILON = 1e-6


class LeavesScales(OwnInRounded):
    """May leave the scales of the activations to the caller."""

    scales_after = True

    def multiply(
        self, inputs: Inputs, tensors: list[torch.Tensor], options: Options
    ) -> torch.Tensor:
        scales = inputs.plain.new_ones(()) if inputs.scales is None else inputs.scales
        return super().multiply(Inputs(inputs.plain, inputs.rounded, scales), tensors, options)


def linear(name: str, rows: int, columns: int, after: bool) -> Any:
    """A layer with products of made-up weights."""
    layer: Any = torch.nn.Module()
    generator = torch.Generator().manual_seed(rows)
    codes = torch.randint(-127, 128, (rows, columns), generator=generator, dtype=torch.int8)
    scales = torch.rand(rows, 1, generator=generator) * 0.002
    product = LeavesScales()
    tensors = product.prepare(Weight(codes, scales, 8, columns))
    for number, tensor in enumerate(tensors):
        layer.register_parameter(f"q{number}", torch.nn.Parameter(tensor, requires_grad=False))
    key = f"int8/{name}"
    op.put(key, op.Planned((product,), (2,), Plan((Step(None, product.name),))))
    loaded = LoadedLayer(key, rows, ("q0", "q1"), False, True, after)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return multiply(layer, loaded, x, lambda flat: ops.round_tokens(flat, False))

    return forward


def traced(after: bool, has_norms: bool = True) -> torch.fx.GraphModule:
    """o_proj, add and norm, gate_up, silu and multiply, down, add and norm, qkv."""
    import vllm.ir
    from vllm.model_executor.layers.activation import SiluAndMul

    ops.register()
    weight = torch.rand(WIDTH, generator=torch.Generator().manual_seed(5)).to(torch.bfloat16)
    o_proj, qkv = linear("o", WIDTH, WIDTH, after), linear("qkv", 3 * WIDTH, WIDTH, after)
    gate_up = linear("gate_up", 2 * INNER, WIDTH, after)
    down = linear("down", WIDTH, INNER, after)

    def norm(x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if not has_norms:
            return torch.tanh(x + residual), residual
        normed: tuple[torch.Tensor, torch.Tensor] = vllm.ir.ops.fused_add_rms_norm(
            x, residual, weight, EPSILON
        )
        return normed

    def forward(x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, residual = norm(o_proj(x), residual)
        inner = gate_up(hidden)
        inner = SiluAndMul.forward_native(inner) if has_norms else torch.tanh(inner[:, :INNER])
        hidden, residual = norm(down(inner), residual)
        return qkv(hidden), residual

    return make_fx(
        forward,
        tracing_mode="symbolic",
        decomposition_table=select_decomp_table(),
        _allow_non_fake_inputs=True,
    )(*activations(8))


def activations(tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    x, residual = torch.randn(2, tokens, WIDTH, generator=generator).to(torch.bfloat16)
    return x, residual
