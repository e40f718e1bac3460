"""The product of one token in 16 bit with 8-bit weights, as a Triton kernel: sums in float32.

Without tensor cores, without rounding of the activations. A program has some rows and all columns.
"""

import triton
import triton.language as tl

from serve.kernels.products.triton_kernels.few_tokens import LINE, wait_for_inputs
from serve.kernels.products.triton_kernels.widen import widened


@triton.jit
def one_token_kernel(
    x_ptr, w_ptr, w_scale_ptr, out_ptr, N,
    K: tl.constexpr, EVEN: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    PDL: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """out[n] = w_scale[n] * sum over k of x[k] * w[n, k]"""
    row = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_row = row < N
    column = tl.arange(0, BLOCK_K)
    w_at = w_ptr + row.to(tl.int64)[:, None] * K + column[None, :]
    if PDL:
        last = tl.minimum(row, N - 1).to(tl.int64)[:, None] * K
        ahead = tl.arange(0, PDL * BLOCK_K // LINE) * LINE
        wait_for_inputs(w_ptr + last + tl.minimum(ahead, K - 1)[None, :])
    sums = tl.zeros((BLOCK_N, BLOCK_K), dtype=tl.float32)
    for at in tl.static_range(0, K, BLOCK_K):
        if EVEN:
            w = tl.load(w_at + at, eviction_policy="evict_first")
        else:
            w = tl.load(w_at + at, mask=is_row[:, None], other=0.0, eviction_policy="evict_first")
        x = tl.load(x_ptr + at + column).to(tl.float32)
        sums += widened(w, INTERPRETED) * x[None, :]
    total = tl.sum(sums, axis=1) * tl.load(w_scale_ptr + row, mask=is_row, other=0.0)
    tl.store(out_ptr + row, total.to(out_ptr.dtype.element_ty), mask=is_row)
