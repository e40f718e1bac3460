"""Writes the keys and values of many tokens into the cache, as a Triton kernel."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["tokens"])
def store_attention_kernel(
    k_ptr, v_ptr, k_cache_ptr, v_cache_ptr, slots_ptr, tokens,
    k_stride, v_stride, page_stride, token_stride, head_stride,
    PAGE: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """A program has some tokens and one head of them."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    head, column = tl.program_id(1), tl.arange(0, WIDTH)
    slot = tl.load(slots_ptr + token, mask=token < tokens, other=-1).to(tl.int64)
    is_token = (slot >= 0)[:, None]
    token = token.to(tl.int64)[:, None]
    k = tl.load(k_ptr + token * k_stride + head * WIDTH + column[None, :], mask=is_token)
    v = tl.load(v_ptr + token * v_stride + head * WIDTH + column[None, :], mask=is_token)
    place = (slot // PAGE) * page_stride + (slot % PAGE) * token_stride + head * head_stride
    tl.store(k_cache_ptr + place[:, None] + column[None, :], k, mask=is_token)
    tl.store(v_cache_ptr + place[:, None] + column[None, :], v, mask=is_token)
