"""Rounding of activations by token, alone or with what comes before it, as Triton kernels.

A program has whole rows, held in registers: a row's largest number must be known before the row is
rounded, and a second reading would cost as much as the first. A row is one block of columns, or
three, which fit a width such as 12,288 without waste.

In between, results are rounded to the type of the inputs, as a kernel that stored them would.
"""

import triton
import triton.language as tl

INT8_TOP, INT8_LEAST = tl.constexpr(127.0), tl.constexpr(1e-10)
FP8_TOP, FP8_LEAST = tl.constexpr(448.0), tl.constexpr(1.0 / (448.0 * 512.0))
"""The largest code, and the smallest scale: rows of zeros have it."""
INTEGERS = tl.constexpr(12582912.0)
"""Floats from here on are whole numbers, so adding this rounds to the nearest; the lowest byte of
the sum is the INT8 code. The GPU converts fewer floats to integers than it adds."""


@triton.jit
def scale_of(top, FLOATS: tl.constexpr):
    """The scale of rows with these largest numbers."""
    if FLOATS:
        scale = tl.maximum(top * (1.0 / FP8_TOP), FP8_LEAST)
    else:
        scale = tl.maximum(top * (1.0 / INT8_TOP), INT8_LEAST)
    return scale


@triton.jit
def code_of(values, inverse, FLOATS: tl.constexpr):
    """Values as FP8 or INT8, to the nearest."""
    scaled = values * inverse
    if FLOATS:
        codes = tl.minimum(tl.maximum(scaled, -FP8_TOP), FP8_TOP).to(tl.float8e4nv)
    else:
        codes = (scaled + INTEGERS).to(tl.int32, bitcast=True).to(tl.int8)
    return codes


@triton.jit
def top_of(values):
    """The largest absolute value of each row, as a column."""
    return tl.max(tl.abs(values), 1)[:, None]


@triton.jit
def loaded(at, is_used, scale, SCALED: tl.constexpr):
    """Activations as float32; with SCALED, times the scales of their tokens."""
    values = tl.load(at, mask=is_used, other=0.0)
    wide = values.to(tl.float32)
    if SCALED:
        wide = (wide * scale).to(values.dtype).to(tl.float32)
    return wide


@triton.jit
def store_row(
    first, second, third, codes_ptr, scales_ptr, row, column, tokens, K: tl.constexpr,
    FLOATS: tl.constexpr, PART: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Rounds rows of one part or of three, and stores codes and scales."""
    is_row = row < tokens
    top = top_of(first)
    if PARTS == 3:
        top = tl.maximum(top, tl.maximum(top_of(second), top_of(third)))
    scale = scale_of(top, FLOATS)
    inverse = 1.0 / scale
    tl.store(scales_ptr + row, scale, mask=is_row)
    at = codes_ptr + row * K + column
    tl.store(at, code_of(first, inverse, FLOATS), mask=is_row & (column < K))
    if PARTS == 3:
        tl.store(
            at + PART, code_of(second, inverse, FLOATS), mask=is_row & (column + PART < K)
        )  # fmt: skip
        tl.store(
            at + 2 * PART, code_of(third, inverse, FLOATS), mask=is_row & (column + 2 * PART < K)
        )  # fmt: skip


@triton.jit
def rows_of(ROWS: tl.constexpr):
    """The rows of this program, as a column."""
    return (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]


@triton.jit(do_not_specialize=["tokens"])
def round_kernel(
    x_ptr, codes_ptr, scales_ptr, tokens, x_stride, K: tl.constexpr, FLOATS: tl.constexpr,
    ROWS: tl.constexpr, PART: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """codes [tokens, K] and scales [tokens, 1] of x [tokens, K]"""
    row, column = rows_of(ROWS), tl.arange(0, PART)[None, :]
    is_row = row < tokens
    at = x_ptr + row * x_stride + column
    first = loaded(at, is_row & (column < K), 1.0, False)
    second, third = first, first
    if PARTS == 3:
        second = loaded(at + PART, is_row & (column + PART < K), 1.0, False)
        third = loaded(at + 2 * PART, is_row & (column + 2 * PART < K), 1.0, False)
    store_row(
        first, second, third, codes_ptr, scales_ptr, row, column, tokens, K, FLOATS, PART, PARTS
    )


@triton.jit
def silu_mul(at, is_used, scale, K: tl.constexpr, SCALED: tl.constexpr):
    """silu(gate) * up: gates are the first K columns."""
    gate = loaded(at, is_used, scale, SCALED)
    up = loaded(at + K, is_used, scale, SCALED)
    product = gate / (1.0 + tl.exp(-gate)) * up
    return product.to(at.dtype.element_ty).to(tl.float32)


@triton.jit(do_not_specialize=["tokens"])
def silu_mul_round_kernel(
    x_ptr, x_scales_ptr, codes_ptr, scales_ptr, tokens, x_stride, K: tl.constexpr,
    SCALED: tl.constexpr, FLOATS: tl.constexpr, ROWS: tl.constexpr, PART: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """codes [tokens, K] and scales [tokens, 1] of silu(x[:, :K]) * x[:, K:]"""
    row, column = rows_of(ROWS), tl.arange(0, PART)[None, :]
    is_row = row < tokens
    by = 1.0
    if SCALED:
        by = tl.load(x_scales_ptr + row, mask=is_row, other=0.0)
    at = x_ptr + row * x_stride + column
    first = silu_mul(at, is_row & (column < K), by, K, SCALED)
    second, third = first, first
    if PARTS == 3:
        second = silu_mul(at + PART, is_row & (column + PART < K), by, K, SCALED)
        third = silu_mul(at + 2 * PART, is_row & (column + 2 * PART < K), by, K, SCALED)
    store_row(
        first, second, third, codes_ptr, scales_ptr, row, column, tokens, K, FLOATS, PART, PARTS
    )


@triton.jit
def added(x_at, residual_at, sum_at, is_used, scale, SCALED: tl.constexpr):
    """x + residual in float32, and stored in their own type."""
    total = loaded(x_at, is_used, scale, SCALED) + loaded(residual_at, is_used, scale, False)
    tl.store(sum_at, total.to(sum_at.dtype.element_ty), mask=is_used)
    return total


@triton.jit
def normed(total, factor, weight_at, is_column, x_ptr):
    """Times the norm's factor and weights; rounded to the type of x."""
    weight = tl.load(weight_at, mask=is_column, other=0.0).to(tl.float32)
    return (total * factor * weight).to(x_ptr.dtype.element_ty).to(tl.float32)


@triton.jit(do_not_specialize=["tokens"])
def add_norm_round_kernel(
    x_ptr, x_scales_ptr, residual_ptr, weight_ptr, codes_ptr, scales_ptr, sum_ptr, tokens,
    x_stride, residual_stride, K: tl.constexpr, EPSILON: tl.constexpr, SCALED: tl.constexpr,
    FLOATS: tl.constexpr, ROWS: tl.constexpr, PART: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """sum = x + residual; codes [tokens, K] and scales [tokens, 1] of its RMSNorm"""
    row, column = rows_of(ROWS), tl.arange(0, PART)[None, :]
    is_row = row < tokens
    is_first, is_second, is_third = column < K, column + PART < K, column + 2 * PART < K
    by = 1.0
    if SCALED:
        by = tl.load(x_scales_ptr + row, mask=is_row, other=0.0)
    x_at, residual_at = (
        x_ptr + row * x_stride + column,
        residual_ptr + row * residual_stride + column,
    )
    sum_at, weight_at = sum_ptr + row * K + column, weight_ptr + column
    first = added(x_at, residual_at, sum_at, is_row & is_first, by, SCALED)
    squares = tl.sum(first * first, 1)[:, None]
    second, third = first, first
    if PARTS == 3:
        second = added(
            x_at + PART, residual_at + PART, sum_at + PART, is_row & is_second, by, SCALED
        )
        third = added(
            x_at + 2 * PART, residual_at + 2 * PART, sum_at + 2 * PART, is_row & is_third, by,
            SCALED,
        )  # fmt: skip
        squares += tl.sum(second * second, 1)[:, None] + tl.sum(third * third, 1)[:, None]
    factor = tl.rsqrt(squares / K + EPSILON)
    first = normed(first, factor, weight_at, is_first, x_ptr)
    if PARTS == 3:
        second = normed(second, factor, weight_at + PART, is_second, x_ptr)
        third = normed(third, factor, weight_at + 2 * PART, is_third, x_ptr)
    store_row(
        first, second, third, codes_ptr, scales_ptr, row, column, tokens, K, FLOATS, PART, PARTS
    )
