"""Widening of 8-bit weights to floats inside Triton kernels, without the slow instructions."""

import triton
import triton.language as tl

# A byte in the mantissa of 2**23 is that number plus the byte. The GPU converts 16 integers a
# clock and multiprocessor, less than the memory delivers; it permutes bytes and adds eight times
# as fast. The offset of 128 makes signed bytes unsigned.
FOUR_BYTES_TO_FLOATS = tl.constexpr(
    """{
    .reg .b32 word;
    xor.b32 word, $4, 0x80808080;
    prmt.b32 $0, word, 0x4B000000, 0x7440;
    prmt.b32 $1, word, 0x4B000000, 0x7441;
    prmt.b32 $2, word, 0x4B000000, 0x7442;
    prmt.b32 $3, word, 0x4B000000, 0x7443;
    }"""
)


@triton.jit
def widened(weights, INTERPRETED: tl.constexpr):
    """INT8 or FP8 as float32, exactly."""
    if weights.dtype == tl.int8 and not INTERPRETED:
        shifted = tl.inline_asm_elementwise(
            FOUR_BYTES_TO_FLOATS, "=r,=r,=r,=r,r", [weights], dtype=tl.float32,
            is_pure=True, pack=4,
        )  # fmt: skip
        return shifted - 8388736.0  # 2**23 + 128
    return weights.to(tl.float32)
