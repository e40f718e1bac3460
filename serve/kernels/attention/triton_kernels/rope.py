"""Normalizes and rotates the queries and keys of many tokens in place, as a Triton kernel."""

import triton
import triton.language as tl


@triton.jit
def rope_kernel(
    qkv_ptr, positions_ptr, q_weight_ptr, k_weight_ptr, rotations_ptr, eps, stride,
    HEADS: tl.constexpr, KEYS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    NORM: tl.constexpr,
):  # fmt: skip
    """A program has one token and some of its heads; those of keys come after those of queries."""
    token = tl.program_id(0).to(tl.int64)
    half: tl.constexpr = WIDTH // 2
    row, column = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, half)
    is_row = (row < HEADS + KEYS)[:, None]
    at = qkv_ptr + token * stride + row[:, None] * WIDTH + column[None, :]
    low = tl.load(at, mask=is_row, other=0.0).to(tl.float32)
    high = tl.load(at + half, mask=is_row, other=0.0).to(tl.float32)
    if NORM:
        squares = tl.sum(low * low, axis=1) + tl.sum(high * high, axis=1)
        factor = tl.rsqrt(squares / WIDTH + eps)[:, None]
        is_query = (row < HEADS)[:, None]
        q_low, q_high = tl.load(q_weight_ptr + column), tl.load(q_weight_ptr + half + column)
        k_low, k_high = tl.load(k_weight_ptr + column), tl.load(k_weight_ptr + half + column)
        low = low * factor * tl.where(is_query, q_low[None, :], k_low[None, :]).to(tl.float32)
        high = high * factor * tl.where(is_query, q_high[None, :], k_high[None, :]).to(tl.float32)
    rotation = rotations_ptr + tl.load(positions_ptr + token).to(tl.int64) * WIDTH
    cosine = tl.load(rotation + column).to(tl.float32)[None, :]
    sine = tl.load(rotation + half + column).to(tl.float32)[None, :]
    kind = qkv_ptr.dtype.element_ty
    tl.store(at, (low * cosine - high * sine).to(kind), mask=is_row)
    tl.store(at + half, (high * cosine + low * sine).to(kind), mask=is_row)
