"""The product of a batch of tokens with packed INT4 or INT8 weights, as a Triton kernel.

Tiles of the weight are the first operand of the tensor cores' product, widened in registers; tokens
(padded) are the second. Packed words are read as bytes: one weight of 8 bits, or two of 4 bits that
stand next to each other. A tile has no more columns than a group, so its scale is applied to the
tile's sums, in float32.
"""

import triton
import triton.language as tl

from serve.kernels.products.triton_kernels.few_tokens import LINE, sum_of_parts, wait_for_inputs

# Four bytes at a time. prmt puts each into the lowest bits of a 16-bit number. A small integer in
# the mantissa of 128 (bfloat16, 7 bits) or 1024 (float16, 10 bits) is that number plus the integer:
# conversions of integers are slow. Weights come offset by half of their range, which is subtracted.
SPREAD = """{
    .reg .b32 first, last, top, offset;
    prmt.b32 first, $2, 0, 0x4140;
    prmt.b32 last, $2, 0, 0x4342;
    """
SPREAD_HIGH = """{
    .reg .b32 word, first, last, offset;
    shr.b32 word, $2, 4;
    prmt.b32 first, word, 0, 0x4140;
    prmt.b32 last, word, 0, 0x4342;
    """
FOUR_BITS = """
    lop3.b32 first, first, 0x000F000F, 0x{base}{base}, 0xEA;
    lop3.b32 last, last, 0x000F000F, 0x{base}{base}, 0xEA;
    mov.b32 offset, 0x{offset}{offset};
    sub.rn.{type}x2 $0, first, offset;
    sub.rn.{type}x2 $1, last, offset;
    }}"""
TO_BFLOAT16 = FOUR_BITS.format(base="4300", offset="4308", type="bf16")
TO_FLOAT16 = FOUR_BITS.format(base="6400", offset="6408", type="f16")
LOW_BFLOAT16 = tl.constexpr(SPREAD + TO_BFLOAT16)
HIGH_BFLOAT16 = tl.constexpr(SPREAD_HIGH + TO_BFLOAT16)
LOW_FLOAT16 = tl.constexpr(SPREAD + TO_FLOAT16)
HIGH_FLOAT16 = tl.constexpr(SPREAD_HIGH + TO_FLOAT16)
# Seven bits fit the mantissa of bfloat16: 128 plus them, minus 256, or minus 128 where the eighth
# bit is set.
BYTE_BFLOAT16 = tl.constexpr(
    SPREAD
    + """
    lop3.b32 top, first, 0x00800080, 0xC380C380, 0x6A;
    lop3.b32 first, first, 0x007F007F, 0x43004300, 0xEA;
    add.rn.bf16x2 $0, first, top;
    lop3.b32 top, last, 0x00800080, 0xC380C380, 0x6A;
    lop3.b32 last, last, 0x007F007F, 0x43004300, 0xEA;
    add.rn.bf16x2 $1, last, top;
    }"""
)
BYTE_FLOAT16 = tl.constexpr(
    SPREAD
    + """
    or.b32 first, first, 0x64006400;
    or.b32 last, last, 0x64006400;
    mov.b32 offset, 0x64806480;
    sub.rn.f16x2 $0, first, offset;
    sub.rn.f16x2 $1, last, offset;
    }"""
)


@triton.jit
def centred(
    codes, BFLOAT16: tl.constexpr, FLOAT16: tl.constexpr, IS_BFLOAT16: tl.constexpr
):  # fmt: skip
    """The numbers that bytes hold, by the assembly for their type."""
    if IS_BFLOAT16:
        numbers = tl.inline_asm_elementwise(
            BFLOAT16, "=r,=r,r", [codes], dtype=tl.bfloat16, is_pure=True, pack=4
        )
    else:
        numbers = tl.inline_asm_elementwise(
            FLOAT16, "=r,=r,r", [codes], dtype=tl.float16, is_pure=True, pack=4
        )
    return numbers


@triton.jit
def weights_of(codes, BITS: tl.constexpr, DTYPE: tl.constexpr, INTERPRETED: tl.constexpr):
    """Bytes as weights of that type, minus half of their range: as many columns as they hold."""
    is_bfloat16: tl.constexpr = DTYPE == tl.bfloat16  # noqa: SIM300 (it is an argument)
    if INTERPRETED:
        whole = codes.to(tl.int32)
        if BITS == 8:
            weights = (whole - 128).to(tl.float32)
        else:
            weights = tl.interleave((whole & 15) - 8, (whole >> 4) - 8).to(tl.float32)
    elif BITS == 8:
        weights = centred(codes, BYTE_BFLOAT16, BYTE_FLOAT16, is_bfloat16)
    else:
        weights = tl.interleave(
            centred(codes, LOW_BFLOAT16, LOW_FLOAT16, is_bfloat16),
            centred(codes, HIGH_BFLOAT16, HIGH_FLOAT16, is_bfloat16),
        )
    return weights


@triton.jit(do_not_specialize=["tokens"])
def batched_kernel(
    x_ptr, w_ptr, scale_ptr, zero_ptr, out_ptr, parts_ptr, counter_ptr, tokens, N,
    K: tl.constexpr, GROUPS: tl.constexpr, BITS: tl.constexpr, ZEROS: tl.constexpr,
    EVEN: tl.constexpr, TOKENS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr, PDL: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """out[t, n] = sum over k of x[t, k] * scale[group of k, n] * (w[n, k] - zero[group of k, n]).

    Programs that share rows of the weight come one after another, so that one of them finds the
    rows in the L2 cache. Without ZEROS, the zero point is half of the range.
    """
    token_blocks = (tokens + TOKENS - 1) // TOKENS
    place, part = tl.program_id(0), tl.program_id(1)
    block, token_block = place // token_blocks, place % token_blocks
    in_block, in_tile = tl.arange(0, BLOCK_N), tl.arange(0, TOKENS)
    row, token = block * BLOCK_N + in_block, token_block * TOKENS + in_tile
    is_row, is_token = row < N, token < tokens
    in_bytes: tl.constexpr = BLOCK_K * BITS // 8
    row_bytes: tl.constexpr = K * BITS // 8
    tiles: tl.constexpr = K // BLOCK_K
    each: tl.constexpr = (tiles + SPLIT - 1) // SPLIT
    in_group: tl.constexpr = tiles // GROUPS
    first = part * each
    end = min(first + each, tiles)
    last_row = tl.minimum(row, N - 1).to(tl.int64)[:, None] * row_bytes
    if PDL:
        lines: tl.constexpr = (in_bytes + LINE - 1) // LINE
        ahead = first * in_bytes + tl.arange(0, PDL * lines) * LINE
        wait_for_inputs(w_ptr + last_row + tl.minimum(ahead, row_bytes - 1)[None, :])
    w_at = w_ptr + row.to(tl.int64)[:, None] * row_bytes + tl.arange(0, in_bytes)[None, :]
    x_at = x_ptr + token[:, None] * K + tl.arange(0, BLOCK_K)[None, :]
    sums = tl.zeros((BLOCK_N, TOKENS), dtype=tl.float32)
    for tile in range(first, end):
        if EVEN:
            codes = tl.load(w_at + tile * in_bytes, eviction_policy="evict_first")
        else:
            codes = tl.load(
                w_at + tile * in_bytes, mask=is_row[:, None], other=0,
                eviction_policy="evict_first",
            )  # fmt: skip
        x = tl.load(x_at + tile * BLOCK_K, mask=is_token[:, None], other=0.0)
        if INTERPRETED:  # which multiplies no bfloat16
            x = x.to(tl.float32)
        w = weights_of(codes, BITS, x_ptr.dtype.element_ty, INTERPRETED)
        group_at = (tile // in_group) * N + row
        if ZEROS:
            zero = tl.load(zero_ptr + group_at, mask=is_row, other=0).to(tl.int32)
            w = w - (zero - (1 << (BITS - 1))).to(w.dtype)[:, None]
        # Apart from `sums`: with operands in registers, a chain of products waits for each of them.
        of_tile = tl.dot(w, tl.trans(x))
        if GROUPS > 1:
            scale = tl.load(scale_ptr + group_at, mask=is_row, other=0.0).to(tl.float32)
            of_tile = of_tile * scale[:, None]
        sums += of_tile
    writes = is_row[:, None] & is_token[None, :]
    if SPLIT > 1:
        sums, is_last = sum_of_parts(
            sums, parts_ptr, counter_ptr, place, part, in_block, in_tile, BLOCK_N, TOKENS, SPLIT
        )
        writes = writes & is_last
    if GROUPS == 1:
        sums = sums * tl.load(scale_ptr + row, mask=is_row, other=0.0).to(tl.float32)[:, None]
    out_at = out_ptr + token.to(tl.int64)[None, :] * N + row[:, None]
    tl.store(out_at, sums.to(out_ptr.dtype.element_ty), mask=writes)
