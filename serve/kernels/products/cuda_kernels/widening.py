"""Statements in CUDA C++ that widen four 8-bit codes in a word to 16-bit floats, exactly.

Bytes 0 and 2 become `even`, bytes 1 and 3 become `odd`. By the type of the result. `masked(value,
mask, bits)` is `(value & mask) | bits`, and `fma2` multiplies and adds two 16-bit floats.
"""

INTEGERS = {
    # 128 + (low seven bits) - (128, or 256 where the sign bit is set).
    "bf16": """
    const u32 next = word >> 8, low = 0x007f007fu, sign = 0x00800080u, one = 0x3f803f80u;
    even = fma2(masked(word, low, 0x43004300u), one, masked(word, sign, 0xc300c300u));
    odd = fma2(masked(next, low, 0x43004300u), one, masked(next, sign, 0xc300c300u));
""",
    # 1024 + (value + 128) - 1152; the sign bit is flipped first, which adds 128.
    "f16": """
    const u32 flipped = word ^ 0x80808080u, byte = 0x00ff00ffu, one = 0x3c003c00u;
    even = fma2(masked(flipped, byte, 0x64006400u), one, 0xe480e480u);
    odd = fma2(masked(flipped >> 8, byte, 0x64006400u), one, 0xe480e480u);
""",
}
FLOATS = {
    # Exponent and fraction at their places; times two to the difference of the exponents' biases.
    "bf16": """
    const u32 size = 0x07f007f0u, sign = 0x80008000u, power = 0x7b807b80u;
    even = fma2(masked(word << 4, size, (word << 8) & sign), power, sign);
    odd = fma2(masked(word >> 4, size, word & sign), power, sign);
""",
    "f16": """
    const u32 size = 0x3f803f80u, sign = 0x80008000u, power = 0x5c005c00u;
    even = fma2(masked(word << 7, size, (word << 8) & sign), power, sign);
    odd = fma2(masked(word >> 1, size, word & sign), power, sign);
""",
}
PACKED = r"""
constexpr u32 ONE = BFLOAT ? 0x3f803f80u : 0x3c003c00u, MINUS_ONE = ONE | 0x80008000u;
constexpr u32 MAGIC = BFLOAT ? 0x43004300u : 0x64006400u, MINUS_MAGIC = MAGIC | 0x80008000u;
// Codes less 128 from the bytes 0 and 2 of a word, in bfloat16: 128 + the low 7 bits, less 128 if
// the highest bit is set and less 256 if it is not.
__device__ __forceinline__ u32 centered(u32 word) {
    return fma2(masked(word, 0x007f007fu, 0x43004300u), ONE,
                masked_not(word, 0x00800080u, 0xc300c300u));
}
// What is added to widened codes for the zero point of a row, which both halves of `zero` hold.
__device__ __forceinline__ u32 shift_of(u32 zero) {
    if (BITS == 8 && BFLOAT) return fma2(centered(zero), MINUS_ONE, 0u);
    return zero | MINUS_MAGIC;
}
// The fragment A of product m of a step. Registers 0 and 2 have row lane / 4, 1 and 3 the row 8
// below; `shifts` are those of the two rows.
__device__ __forceinline__ void widened(const uint4* codes, int m, const u32 (&shifts)[2],
                                        u32 (&a)[4]) {
    const u32* words = reinterpret_cast<const u32*>(codes);
    #pragma unroll
    for (int t = 0; t < 4; ++t) {
        if (BITS == 4) {
            a[t] = fma2(masked(words[m] >> (4 * t), 0x000f000fu, MAGIC), ONE, shifts[t & 1]);
        } else {
            const u32 word = words[2 * m + (t >> 1)] >> (8 * (t & 1));
            if (!BFLOAT) a[t] = fma2(masked(word, 0x00ff00ffu, MAGIC), ONE, shifts[t & 1]);
            if (BFLOAT && !ZEROS) a[t] = centered(word);
            if (BFLOAT && ZEROS) a[t] = fma2(centered(word), ONE, shifts[t & 1]);
        }
    }
}
"""
"""Widens words of packed integers. The source around it defines BITS, ZEROS and BFLOAT."""
SCALES = r"""
__device__ __forceinline__ float scale_of(u32 pair, int half) {
    if (BFLOAT_SCALES) return __uint_as_float(half ? pair & 0xffff0000u : pair << 16);
    float d;
    asm("cvt.f32.f16 %0, %1;" : "=f"(d) : "h"((u16)(half ? pair >> 16 : pair & 0xffffu)));
    return d;
}
"""
"""One of the two 16-bit scales in a word. The source around it defines BFLOAT_SCALES."""
