"""Attention of one new token of each request, as a Triton kernel.

It normalizes and rotates the new queries and keys, writes the new keys and values into the cache,
and attends to all tokens of the request. In vLLM these are five kernels. A program has one request,
one head of keys, and one part of the older tokens: every so many tiles one. The last program of a
head to finish joins the parts in their order, so the result is the same in every run. Lengths are
read on the GPU, and decide how many parts there are: a captured graph serves every length.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

NONE = tl.constexpr(-1.0e30)
"""The score of a token that is not there: finite, so that no difference of two is NaN."""
DEPTH = tl.constexpr(4)
"""A request has more parts than those that begin early only where each has so many tiles: joining
more parts takes longer."""


@triton.jit
def rotated(
    row_ptr, column, weight_ptr, rotation_ptr, eps, mask, WIDTH: tl.constexpr,
    NORM: tl.constexpr, ROPE: tl.constexpr,
):  # fmt: skip
    """Heads [rows, WIDTH] from pointers to their first numbers, normalized and rotated: float32."""
    x = tl.load(row_ptr + column[None, :], mask=mask, other=0.0).to(tl.float32)
    if NORM:
        factor = tl.rsqrt(tl.sum(x * x, axis=1) / WIDTH + eps)
        x = x * factor[:, None] * tl.load(weight_ptr + column).to(tl.float32)[None, :]
    if ROPE:
        half: tl.constexpr = WIDTH // 2
        other = (column + half) % WIDTH
        y = tl.load(row_ptr + other[None, :], mask=mask, other=0.0).to(tl.float32)
        if NORM:
            y = y * factor[:, None] * tl.load(weight_ptr + other).to(tl.float32)[None, :]
        cosine = tl.load(rotation_ptr + column % half).to(tl.float32)
        sine = tl.load(rotation_ptr + half + column % half).to(tl.float32)
        x = x * cosine[None, :] + tl.where(column < half, -1.0, 1.0)[None, :] * y * sine[None, :]
    return x


@triton.jit
def attended(
    q, k, v, is_token, scale, best, total, sums, INTERPRETED: tl.constexpr
):  # fmt: skip
    """One more tile of tokens: the highest scores, the totals of weights, and the weighted sums."""
    if INTERPRETED:  # which multiplies no bfloat16
        scores = tl.dot(q.to(tl.float32), tl.trans(k).to(tl.float32)) * scale
    else:
        scores = tl.dot(q, tl.trans(k)) * scale
    scores = tl.where(is_token[None, :], scores, NONE)
    highest = tl.maximum(best, tl.max(scores, axis=1))
    fade = tl.exp2(best - highest)
    weights = tl.where(is_token[None, :], tl.exp2(scores - highest[:, None]), 0.0)
    total = total * fade + tl.sum(weights, axis=1)
    if INTERPRETED:
        sums = tl.dot(weights, v.to(tl.float32), sums * fade[:, None])
    else:
        sums = tl.dot(weights.to(v.dtype), v, sums * fade[:, None])
    return highest, total, sums


@triton.jit
def joined_parts(
    begin, used, size, column, GROUP: tl.constexpr, MEMBERS: tl.constexpr, WIDTH: tl.constexpr,
    AT_ONCE: tl.constexpr,
):  # fmt: skip
    """The results of a group [MEMBERS, WIDTH] from its `used` parts, of `size` floats each. Some
    parts of all members are read at once: it takes as long as one of them would."""
    member, parts = tl.arange(0, MEMBERS), tl.arange(0, AT_ONCE)
    best = tl.full((MEMBERS,), NONE, dtype=tl.float32)
    total = tl.zeros((MEMBERS,), dtype=tl.float32)
    sums = tl.zeros((MEMBERS, WIDTH), dtype=tl.float32)
    for first in range(0, used, AT_ONCE):
        part = (first + parts)[:, None]
        is_there = (part < used) & (member < GROUP)[None, :]
        highs_at = begin + part * size + GROUP * WIDTH + member[None, :]
        highs = tl.load(highs_at, mask=is_there, other=NONE, cache_modifier=".cg")
        totals = tl.load(highs_at + GROUP, mask=is_there, other=0.0, cache_modifier=".cg")
        cells = (part * size + member[None, :] * WIDTH)[:, :, None] + column[None, None, :]
        found = tl.load(begin + cells, mask=is_there[:, :, None], other=0.0, cache_modifier=".cg")
        highest = tl.maximum(best, tl.max(highs, axis=0))
        fade, shares = tl.exp2(best - highest), tl.exp2(highs - highest[None, :])
        best = highest
        total = total * fade + tl.sum(totals * shares, axis=0)
        sums = sums * fade[:, None] + tl.sum(found * shares[:, :, None], axis=0)
    return sums / tl.where(member < GROUP, total, 1.0)[:, None]


@triton.jit(do_not_specialize=["table_stride", "split", "eager"])
def decode_attention_kernel(
    q_ptr, k_ptr, v_ptr, k_cache_ptr, v_cache_ptr, table_ptr, lengths_ptr, slots_ptr, out_ptr,
    parts_ptr, counter_ptr, q_weight_ptr, k_weight_ptr, rotations_ptr, scale, eps,
    q_stride, k_stride, v_stride, page_stride, token_stride, head_stride, table_stride, out_stride,
    split, eager,
    PAGE: tl.constexpr, GROUP: tl.constexpr, MEMBERS: tl.constexpr, ROWS: tl.constexpr,
    WIDTH: tl.constexpr, NORM: tl.constexpr, ROPE: tl.constexpr, TOKENS: tl.constexpr,
    JOINS: tl.constexpr, AT_ONCE: tl.constexpr, PDL: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """out[r, h] = softmax(q[r, h] . keys * scale) . values; `scale` is for powers of two. A request
    has up to `split` parts. The first `eager` ones begin before they know its length."""
    head, request, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row, column, in_tile = tl.arange(0, ROWS), tl.arange(0, WIDTH), tl.arange(0, TOKENS)
    is_row = (row < GROUP)[:, None]
    # The first tile is fetched before the length is known, and before the kernel in front has
    # ended: no kernel of this step writes older tokens. What is beyond the length is not used.
    is_eager = part < eager
    token = part * TOKENS + in_tile
    is_place = (token // PAGE < table_stride) & is_eager
    page = tl.load(table_ptr + request * table_stride + token // PAGE, mask=is_place, other=0)
    page = tl.maximum(page, 0).to(tl.int64)
    at = page * page_stride + (token % PAGE) * token_stride + head * head_stride
    is_fetched = is_place[:, None]
    k_tile = tl.load(k_cache_ptr + at[:, None] + column[None, :], mask=is_fetched, other=0.0)
    v_tile = tl.load(v_cache_ptr + at[:, None] + column[None, :], mask=is_fetched, other=0.0)
    older = tl.load(lengths_ptr + request) - 1
    tiles = tl.cdiv(tl.maximum(older, 1), TOKENS)
    used = tl.minimum(tl.minimum(tiles, tl.maximum(tl.cdiv(tiles, DEPTH), eager)), split)
    if part >= used:
        return
    heads = head * GROUP + row
    out_at = out_ptr + request * out_stride + heads[:, None] * WIDTH + column[None, :]
    if PDL:  # a next kernel that begins later is slower, though this one then is faster
        gdc_wait()
        gdc_launch_dependents()
    if older < 0:  # a place of the graph that no request has
        nothing = tl.zeros((ROWS, WIDTH), dtype=out_ptr.dtype.element_ty)
        tl.store(out_at, nothing, mask=is_row)
        return
    rotation = rotations_ptr + older.to(tl.int64) * WIDTH
    q_rows = q_ptr + request.to(tl.int64) * q_stride + heads[:, None] * WIDTH
    q = rotated(q_rows, column, q_weight_ptr, rotation, eps, is_row, WIDTH, NORM, ROPE)
    q = q.to(q_ptr.dtype.element_ty)
    best = tl.full((ROWS,), NONE, dtype=tl.float32)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    sums = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    if part == 0:  # the new token
        one = tl.arange(0, 1)
        k_row = k_ptr + request.to(tl.int64) * k_stride + head * WIDTH + one[:, None]
        k = rotated(k_row, column, k_weight_ptr, rotation, eps, one[:, None] < 1, WIDTH, NORM, ROPE)
        k = k.to(k_ptr.dtype.element_ty)
        v = tl.load(v_ptr + request.to(tl.int64) * v_stride + head * WIDTH + column)
        slot = tl.load(slots_ptr + request).to(tl.int64)
        if slot >= 0:
            place = (slot // PAGE) * page_stride + (slot % PAGE) * token_stride + head * head_stride
            tl.store(k_cache_ptr + place + one[:, None] + column[None, :], k)
            tl.store(v_cache_ptr + place + column, v)
        best = tl.sum(q.to(tl.float32) * k.to(tl.float32), axis=1) * scale
        total += 1.0
        sums += v.to(tl.float32)[None, :]
    is_token = (token < older) & is_eager
    v_tile = tl.where(is_token[:, None], v_tile, 0.0)
    best, total, sums = attended(
        q, k_tile, v_tile, is_token, scale, best, total, sums, INTERPRETED
    )  # fmt: skip
    for tile in range(part + used * is_eager.to(tl.int32), tiles, used):
        token = tile * TOKENS + in_tile
        is_token = token < older
        is_read = is_token[:, None]
        number = tl.load(table_ptr + request * table_stride + token // PAGE, mask=is_token, other=0)
        offset = number.to(tl.int64) * page_stride + (token % PAGE) * token_stride
        from_here = (offset + head * head_stride)[:, None] + column[None, :]
        k_tile = tl.load(k_cache_ptr + from_here, mask=is_read, other=0.0)
        v_tile = tl.load(v_cache_ptr + from_here, mask=is_read, other=0.0)
        best, total, sums = attended(
            q, k_tile, v_tile, is_token, scale, best, total, sums, INTERPRETED
        )  # fmt: skip
    if JOINS and used > 1:
        group = request * tl.num_programs(0) + head
        # A part: its sums, then its highest scores, then its totals.
        size: tl.constexpr = GROUP * (WIDTH + 2)
        begin = parts_ptr + group.to(tl.int64) * split * size
        mine = begin + part * size
        cells = row[:, None] * WIDTH + column[None, :]
        tl.store(mine + cells, sums, mask=is_row, cache_modifier=".cg")
        tl.store(mine + GROUP * WIDTH + row, best, mask=row < GROUP, cache_modifier=".cg")
        tl.store(mine + GROUP * (WIDTH + 1) + row, total, mask=row < GROUP, cache_modifier=".cg")
        tl.debug_barrier()  # all threads have written before one of them counts
        counter = counter_ptr + group
        if tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == used - 1:
            tl.store(counter, 0)
            joined = joined_parts(begin, used, size, column, GROUP, MEMBERS, WIDTH, AT_ONCE)
            member = tl.arange(0, MEMBERS)
            joined_at = out_ptr + request * out_stride + (head * GROUP + member)[:, None] * WIDTH
            joined_at += column[None, :]
            tl.store(joined_at, joined.to(out_ptr.dtype.element_ty), mask=(member < GROUP)[:, None])
    else:
        result = sums / total[:, None]
        tl.store(out_at, result.to(out_ptr.dtype.element_ty), mask=is_row)
