"""The product of up to sixteen tokens with 8-bit weights, as a Triton kernel.

The weights' bytes are what such a product waits for. Tiles of the weight are the first operand of
the tensor cores' product, tokens (padded) the second. Columns may be split over programs; the last
program of a block of rows to finish adds the parts in their order, so the result is the same in
every run.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from serve.kernels.products.triton_kernels.widen import widened

INTEGERS = tl.constexpr(0)
"""INT8 weights and rounded INT8 activations: exact sums."""
FLOATS = tl.constexpr(1)
"""FP8 weights and rounded FP8 activations."""
WIDENED = tl.constexpr(2)
"""INT8 or FP8 weights, widened to the type of 16-bit activations."""
FP8_SUMS = tl.constexpr(128)
"""Products of FP8 that the tensor cores add with about 14 bits, before the sum goes to float32."""
LINE = tl.constexpr(128)
"""Bytes that the L2 cache fetches for one prefetch."""


@triton.jit
def wait_for_inputs(address):
    """Starts fetching weights into the L2 cache, then waits for the kernel before this one.

    Weights depend on no kernel. Activations are read, and results written, after the wait only. The
    next kernel may begin after it, too: it may read, without a wait of its own, what the kernel
    before this one wrote, as kernels of Inductor do.
    """
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [address], dtype=tl.int32,
        is_pure=False, pack=1,
    )  # fmt: skip
    gdc_wait()
    gdc_launch_dependents()


@triton.jit
def sum_of_parts(total, parts_ptr, counter_ptr, block, part, rows, columns,
                 BLOCK_ROWS: tl.constexpr, WIDTH: tl.constexpr, SPLIT: tl.constexpr):  # fmt: skip
    """Adds the parts of a block of rows in order: the last program to come does it.

    Returns the sums and whether this program has them. The counter is zero again afterwards.
    """
    at = rows[:, None] * WIDTH + columns[None, :]
    size: tl.constexpr = BLOCK_ROWS * WIDTH
    first = parts_ptr + block * SPLIT * size
    tl.store(first + part * size + at, total, cache_modifier=".cg")
    tl.debug_barrier()  # all threads have written before one of them counts
    is_last = tl.atomic_add(counter_ptr + block, 1, sem="acq_rel", scope="gpu") == SPLIT - 1
    if is_last:
        total = tl.load(first + at, cache_modifier=".cg")
        for other in tl.static_range(1, SPLIT):
            total += tl.load(first + other * size + at, cache_modifier=".cg")
        tl.store(counter_ptr + block, 0)
    return total, is_last


@triton.jit
def finish(
    sums, x_scale_ptr, w_scale_ptr, out_ptr, parts_ptr, counter_ptr, tokens, N,
    SCALED: tl.constexpr, TOKENS: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Adds the parts, applies the scales and stores the result."""
    block, part = tl.program_id(0), tl.program_id(1)
    in_block, token = tl.arange(0, BLOCK_N), tl.arange(0, TOKENS)
    row = block * BLOCK_N + in_block
    is_row, is_token = row < N, token < tokens
    writes = is_row[:, None] & is_token[None, :]
    if SPLIT > 1:
        sums, is_last = sum_of_parts(
            sums, parts_ptr, counter_ptr, block, part, in_block, token, BLOCK_N, TOKENS, SPLIT
        )
        writes = writes & is_last
    total = sums.to(tl.float32) * tl.load(w_scale_ptr + row, mask=is_row, other=0.0)[:, None]
    if SCALED:
        total = total * tl.load(x_scale_ptr + token, mask=is_token, other=0.0)[None, :]
    out_at = out_ptr + token.to(tl.int64)[None, :] * N + row[:, None]
    tl.store(out_at, total.to(out_ptr.dtype.element_ty), mask=writes)


@triton.jit(do_not_specialize=["tokens"])
def few_tokens_kernel(
    x_ptr, x_scale_ptr, w_ptr, w_scale_ptr, out_ptr, parts_ptr, counter_ptr, tokens, N,
    K: tl.constexpr, KIND: tl.constexpr, SCALED: tl.constexpr, EVEN: tl.constexpr,
    TOKENS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT: tl.constexpr,
    PDL: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """out[t, n] = x_scale[t] * w_scale[n] * sum over k of x[t, k] * w[n, k]"""
    block, part = tl.program_id(0), tl.program_id(1)
    row = block * BLOCK_N + tl.arange(0, BLOCK_N)
    token = tl.arange(0, TOKENS)
    column = tl.arange(0, BLOCK_K)
    is_row, is_token = row < N, token < tokens
    tiles: tl.constexpr = K // BLOCK_K
    each: tl.constexpr = (tiles + SPLIT - 1) // SPLIT
    first = part * each * BLOCK_K
    end = min(first + each * BLOCK_K, K)
    w_row = w_ptr + row.to(tl.int64)[:, None] * K
    if PDL:
        lines: tl.constexpr = (BLOCK_K + LINE - 1) // LINE
        ahead = tl.arange(0, PDL * lines) * LINE
        last = tl.minimum(row, N - 1).to(tl.int64)[:, None] * K
        wait_for_inputs(w_ptr + last + tl.minimum(first + ahead, K - 1)[None, :])
    w_at = w_row + column[None, :]
    x_at = x_ptr + token[:, None] * K + column[None, :]
    sums = tl.zeros((BLOCK_N, TOKENS), dtype=tl.int32 if KIND == INTEGERS else tl.float32)
    for at in range(first, end, BLOCK_K):
        if EVEN:
            w = tl.load(w_at + at, eviction_policy="evict_first")
        else:
            w = tl.load(w_at + at, mask=is_row[:, None], other=0.0, eviction_policy="evict_first")
        x = tl.load(x_at + at, mask=is_token[:, None], other=0.0)
        if KIND == INTEGERS:
            sums = tl.dot(w, tl.trans(x), sums, out_dtype=tl.int32)
        elif KIND == FLOATS:
            sums = tl.dot(w, tl.trans(x), sums, max_num_imprecise_acc=min(BLOCK_K, FP8_SUMS))
        elif INTERPRETED:  # which multiplies no bfloat16
            sums = tl.dot(w.to(tl.float32), tl.trans(x).to(tl.float32), sums)
        else:  # by way of float32: the instruction from FP8 to bfloat16 is slow
            sums = tl.dot(widened(w, INTERPRETED).to(x.dtype), tl.trans(x), sums)
    finish(
        sums, x_scale_ptr, w_scale_ptr, out_ptr, parts_ptr, counter_ptr, tokens, N,
        SCALED, TOKENS, BLOCK_N, SPLIT,
    )  # fmt: skip
