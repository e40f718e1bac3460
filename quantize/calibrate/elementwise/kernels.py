"""Triton kernels for what transformers computes in several steps, each of which reads and writes
all activations. Every rounding to 16 bits of transformers' own code is kept."""

import torch
import triton
import triton.language as tl

TILE = 4096  # values that a program works on


@triton.jit
def _rms_norm(
    input_ptr, weight_ptr, output_ptr, rows, width, epsilon,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    is_column = column < width
    inside = (row < rows)[:, None] & is_column[None, :]
    place = row[:, None] * width + column[None, :]
    values = tl.load(input_ptr + place, mask=inside, other=0.0).to(tl.float32)
    mean_square = tl.sum(values * values, 1) / width
    normed = values * tl.rsqrt(mean_square + epsilon)[:, None]
    rounded = normed.to(output_ptr.dtype.element_ty).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=is_column, other=0.0).to(tl.float32)
    output = (rounded * weight[None, :]).to(output_ptr.dtype.element_ty)
    tl.store(output_ptr + place, output, mask=inside)


@triton.jit
def _rotate(
    input_ptr, cos_ptr, sin_ptr, output_ptr, heads, length, half,
    stride_batch, stride_head, stride_token, stride_cos_batch, stride_cos_token,
    HEADS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64) % length
    batch = tl.program_id(0).to(tl.int64) // length
    head = tl.arange(0, HEADS)
    column = tl.arange(0, HALF)
    is_column = column < half
    inside = (head < heads)[:, None] & is_column[None, :]
    kind = output_ptr.dtype.element_ty
    place = batch * stride_batch + head[:, None] * stride_head + token * stride_token
    place = place + column[None, :]
    left = tl.load(input_ptr + place, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(input_ptr + place + half, mask=inside, other=0.0).to(tl.float32)
    angle = batch * stride_cos_batch + token * stride_cos_token + column
    cos_left = tl.load(cos_ptr + angle, mask=is_column, other=0.0).to(tl.float32)[None, :]
    cos_right = tl.load(cos_ptr + angle + half, mask=is_column, other=0.0).to(tl.float32)[None, :]
    sin_left = tl.load(sin_ptr + angle, mask=is_column, other=0.0).to(tl.float32)[None, :]
    sin_right = tl.load(sin_ptr + angle + half, mask=is_column, other=0.0).to(tl.float32)[None, :]
    straight = (left * cos_left).to(kind).to(tl.float32)
    turned = (-right * sin_left).to(kind).to(tl.float32)
    tl.store(output_ptr + place, (straight + turned).to(kind), mask=inside)
    straight = (right * cos_right).to(kind).to(tl.float32)
    turned = (left * sin_right).to(kind).to(tl.float32)
    tl.store(output_ptr + place + half, (straight + turned).to(kind), mask=inside)


@triton.jit
def _silu_product(gate_ptr, up_ptr, output_ptr, count, TILE: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = place < count
    gate = tl.load(gate_ptr + place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + place, mask=inside, other=0.0).to(tl.float32)
    kind = output_ptr.dtype.element_ty
    activated = (gate / (1.0 + tl.exp(-gate))).to(kind).to(tl.float32)
    tl.store(output_ptr + place, (activated * up).to(kind), mask=inside)


def rms_norm(inputs: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """The inputs over their root mean square in the last dimension, times the weight."""
    inputs = inputs.contiguous()
    width = inputs.shape[-1]
    rows = inputs.numel() // width
    output = torch.empty_like(inputs)
    padded = triton.next_power_of_2(width)
    rows_at_once = max(1, TILE // padded)
    _rms_norm[(triton.cdiv(rows, rows_at_once),)](
        inputs, weight, output, rows, width, epsilon, ROWS=rows_at_once, WIDTH=padded
    )
    return output


def rotate(states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions of states [batch, heads, tokens, width]; cos and sin [batch or 1, tokens,
    width]."""
    batch, heads, length, width = states.shape
    output = torch.empty_like(states)
    if states.stride() != output.stride() or states.stride(-1) != 1:
        states = states.contiguous()
        output = torch.empty_like(states)
    cos, sin = cos.contiguous(), sin.contiguous()
    _rotate[(batch * length,)](
        states, cos, sin, output, heads, length, width // 2,
        states.stride(0), states.stride(1), states.stride(2),
        cos.stride(0) if len(cos) > 1 else 0, cos.stride(1),
        HEADS=triton.next_power_of_2(heads), HALF=triton.next_power_of_2(width // 2),
    )  # fmt: skip
    return output


def silu_product(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) times up."""
    gate, up = gate.contiguous(), up.contiguous()
    output = torch.empty_like(gate)
    count = gate.numel()
    _silu_product[(triton.cdiv(count, TILE),)](gate, up, output, count, TILE=TILE)
    return output
