"""The product of up to sixteen tokens with 2:4 sparse 8-bit weights, as a Triton kernel.

The stored layout is that of `sparse.layout`. Four columns of a row are a group with two values and
a mask of four bits. A group is expanded in registers to its four columns; the first columns of all
groups make one operand of the tensor cores, the second ones the next. Activations come in their
usual order, four in a word: column j of each group is byte j of a word.
"""

import triton
import triton.language as tl

from serve.kernels.products.triton_kernels.few_tokens import finish, wait_for_inputs

PLACED = """
    and.b32 $0, $4, is_0;
    lop3.b32 chosen, is_0, $5, $4, 0xCA;
    and.b32 $1, chosen, is_1;
    lop3.b32 chosen, is_3, $4, $5, 0xCA;
    and.b32 $2, chosen, is_2;
    and.b32 $3, $5, is_3;
    }"""
# Four groups at a time, a byte each: $4 the first values, $5 the second, $6 the masks. Byte i of
# `is_j` is 0xFF where group i has a value in column j: prmt with 0xBA98 repeats each byte's top
# bit. The first value is in column 1 unless column 0 has it; the second in column 2 unless column
# 3 has it.
EXPANDED_LOW = tl.constexpr(
    """{
    .reg .b32 is_0, is_1, is_2, is_3, chosen;
    shl.b32 is_0, $6, 7;
    shl.b32 is_1, $6, 6;
    shl.b32 is_2, $6, 5;
    shl.b32 is_3, $6, 4;
    prmt.b32 is_0, is_0, is_0, 0xBA98;
    prmt.b32 is_1, is_1, is_1, 0xBA98;
    prmt.b32 is_2, is_2, is_2, 0xBA98;
    prmt.b32 is_3, is_3, is_3, 0xBA98;
    """
    + PLACED
)
EXPANDED_HIGH = tl.constexpr(
    """{
    .reg .b32 is_0, is_1, is_2, is_3, chosen;
    shl.b32 is_0, $6, 3;
    shl.b32 is_1, $6, 2;
    shl.b32 is_2, $6, 1;
    prmt.b32 is_0, is_0, is_0, 0xBA98;
    prmt.b32 is_1, is_1, is_1, 0xBA98;
    prmt.b32 is_2, is_2, is_2, 0xBA98;
    prmt.b32 is_3, $6, $6, 0xBA98;
    """
    + PLACED
)
# Four words of four bytes, turned: $0 gets the first byte of each word, $1 the second.
TURNED = tl.constexpr(
    """{
    .reg .b32 low_01, low_23, high_01, high_23;
    prmt.b32 low_01, $4, $5, 0x5140;
    prmt.b32 low_23, $6, $7, 0x5140;
    prmt.b32 high_01, $4, $5, 0x7362;
    prmt.b32 high_23, $6, $7, 0x7362;
    prmt.b32 $0, low_01, low_23, 0x5410;
    prmt.b32 $1, low_01, low_23, 0x7632;
    prmt.b32 $2, high_01, high_23, 0x5410;
    prmt.b32 $3, high_01, high_23, 0x7632;
    }"""
)


@triton.jit
def expanded(first, second, masks, HIGH: tl.constexpr, INTERPRETED: tl.constexpr):
    """The four columns of each group, as four tiles of bytes."""
    if INTERPRETED:
        bits = (masks.to(tl.int32) >> (4 if HIGH else 0)) & 15
        nothing = tl.zeros_like(first)
        column_0 = tl.where(bits & 1 != 0, first, nothing)
        column_1 = tl.where(bits & 2 != 0, tl.where(bits & 1 != 0, second, first), nothing)
        column_2 = tl.where(bits & 4 != 0, tl.where(bits & 8 != 0, first, second), nothing)
        column_3 = tl.where(bits & 8 != 0, second, nothing)
        return column_0, column_1, column_2, column_3
    return tl.inline_asm_elementwise(
        EXPANDED_HIGH if HIGH else EXPANDED_LOW, "=r,=r,=r,=r,r,r,r", [first, second, masks],
        dtype=(tl.int8, tl.int8, tl.int8, tl.int8), is_pure=True, pack=4,
    )  # fmt: skip


@triton.jit
def turned(words, INTERPRETED: tl.constexpr):
    """The four bytes of each word, as four tiles of bytes."""
    if INTERPRETED:
        return (
            words.to(tl.int8), (words >> 8).to(tl.int8), (words >> 16).to(tl.int8),
            (words >> 24).to(tl.int8),
        )  # fmt: skip
    return tl.inline_asm_elementwise(
        TURNED, "=r,=r,=r,=r,r,r,r,r", [words],
        dtype=(tl.int8, tl.int8, tl.int8, tl.int8), is_pure=True, pack=4,
    )  # fmt: skip


@triton.jit
def add_product(sums, weights, activations, FLOATS: tl.constexpr):
    """One column of each group."""
    if FLOATS:
        weights = weights.to(tl.float8e4nv, bitcast=True)
        activations = activations.to(tl.float8e4nv, bitcast=True)
        few: tl.constexpr = weights.shape[1]  # then the sum goes to float32
        sums = tl.dot(weights, tl.trans(activations), sums, max_num_imprecise_acc=few)
    else:
        sums = tl.dot(weights, tl.trans(activations), sums, out_dtype=tl.int32)
    return sums


@triton.jit
def add_groups(sums, first, second, masks, words, HIGH: tl.constexpr, FLOATS: tl.constexpr,
               INTERPRETED: tl.constexpr):  # fmt: skip
    """All four columns of each group."""
    w_0, w_1, w_2, w_3 = expanded(first, second, masks, HIGH, INTERPRETED)
    x_0, x_1, x_2, x_3 = turned(words, INTERPRETED)
    sums = add_product(sums, w_0, x_0, FLOATS)
    sums = add_product(sums, w_1, x_1, FLOATS)
    sums = add_product(sums, w_2, x_2, FLOATS)
    return add_product(sums, w_3, x_3, FLOATS)


@triton.jit(do_not_specialize=["tokens"])
def sparse_kernel(
    x_ptr, x_scale_ptr, w_ptr, w_scale_ptr, out_ptr, parts_ptr, counter_ptr, tokens, N,
    GROUPS: tl.constexpr, BLOCKS: tl.constexpr, FLOATS: tl.constexpr, SCALED: tl.constexpr,
    TOKENS: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT: tl.constexpr, PDL: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """x as words [tokens, K / 4]; w as bytes [N, BLOCKS * 5 * GROUPS]; GROUPS is half a block."""
    block, part = tl.program_id(0), tl.program_id(1)
    row = block * BLOCK_N + tl.arange(0, BLOCK_N)
    token = tl.arange(0, TOKENS)
    group = tl.arange(0, GROUPS)
    is_token = (token < tokens)[:, None]
    size: tl.constexpr = 5 * GROUPS
    each: tl.constexpr = (BLOCKS + SPLIT - 1) // SPLIT
    first_block = part * each
    end_block = min(first_block + each, BLOCKS)
    w_row = w_ptr + tl.minimum(row, N - 1).to(tl.int64)[:, None] * (BLOCKS * size)
    if PDL:
        ahead = tl.minimum(first_block * size + tl.arange(0, PDL * 4) * 128, BLOCKS * size - 1)
        wait_for_inputs(w_row + ahead[None, :])
    w_at = w_row + group[None, :]
    x_at = x_ptr + token[:, None] * (BLOCKS * 2 * GROUPS) + group[None, :]
    sums = tl.zeros((BLOCK_N, TOKENS), dtype=tl.float32 if FLOATS else tl.int32)
    for at in range(first_block, end_block):
        here = w_at + at * size
        words_at = x_at + at * 2 * GROUPS
        masks = tl.load(here + 4 * GROUPS)
        first = tl.load(here)
        second = tl.load(here + GROUPS)
        words = tl.load(words_at, mask=is_token, other=0)
        sums = add_groups(sums, first, second, masks, words, False, FLOATS, INTERPRETED)
        first = tl.load(here + 2 * GROUPS)
        second = tl.load(here + 3 * GROUPS)
        words = tl.load(words_at + GROUPS, mask=is_token, other=0)
        sums = add_groups(sums, first, second, masks, words, True, FLOATS, INTERPRETED)
    finish(
        sums, x_scale_ptr, w_scale_ptr, out_ptr, parts_ptr, counter_ptr, tokens, N,
        SCALED, TOKENS, BLOCK_N, SPLIT,
    )  # fmt: skip
