"""What the kernel of `source` does with numbers of 8 and of 16 bits: how codes become fragments of
`wgmma`, in which order activations lie, and what results are multiplied by at the end."""

from serve.kernels.products.cuda_kernels.widening import PACKED

EIGHT_BITS = r"""
// Codes from 0 to 15 in the low halves of four bytes, less 8, as 8-bit floats of 1 / 512 of that:
// the code less 8, or the sign and 8 less the code. `negative` is 1 for codes below 8. Whole
// numbers up to 15 are the bits of the 8-bit floats 0 to 15 / 512, so sums are 512 times too small.
__device__ __forceinline__ u32 floats_of(u32 codes, u32 negative) {
    const u32 flips = negative * 0x7fu + 0x08080808u;  // 0x08, or 0x87
    return ((codes & 0x0f0f0f0fu) ^ flips) + negative;
}
// The fragments A of a step: registers 0 and 2 have row lane / 4, 1 and 3 the row 8 below.
__device__ __forceinline__ void fragments_of(const uint4 (&codes)[2], u32 zero, u32 (&a)[4][4]) {
    const u32 words[8] = {codes[0].x, codes[0].y, codes[0].z, codes[0].w,
                          codes[1].x, codes[1].y, codes[1].z, codes[1].w};
    #pragma unroll
    for (int m = 0; m < 8; ++m) {
        const u32 word = words[m];
        a[m / 2][m % 2 * 2] = floats_of(word, ~(word >> 3) & 0x01010101u);
        a[m / 2][m % 2 * 2 + 1] = floats_of(word >> 4, ~(word >> 7) & 0x01010101u);
    }
}
// Of 32 columns, the half j of a product has those with 8 quad + 4 j + (0, 2, 1 or 3). In bytes 0,
// 1, 2, 3: the activations of columns 0, 2, 1, 3, as the codes of a word are.
__device__ __forceinline__ u32 ordered(u32 four) { return __byte_perm(four, 0, 0x3120); }
__device__ __forceinline__ float end_scale(const float* of_tokens, int has_scales, int token,
                                            int row) {
    return has_scales ? 512.0f * of_tokens[token] : 512.0f;
}
"""
SIXTEEN_BITS = (
    "constexpr bool BFLOAT = @BFLOAT@;\n"
    + PACKED.lstrip("\n")
    + r"""
// The fragments A of half a step: four products of 16 columns. `zero`: of both rows.
__device__ __forceinline__ void fragments_of(const uint4 (&codes)[BITS / 4], u32 zero,
                                             u32 (&a)[4][4]) {
    const u32 both = ZEROS ? zero : (1u << (BITS - 1)) * 0x10001u;
    const u32 shifts[2] = {shift_of(__byte_perm(both, 0, 0x1010)),
                           shift_of(__byte_perm(both, 0, 0x3232))};
    #pragma unroll
    for (int m = 0; m < 4; ++m) widened(codes, m, shifts, a[m]);
}
// Of 32 columns, a lane's four words of each product lie 8 columns apart: whole words, in order.
__device__ __forceinline__ u32 ordered(u32 two) { return two; }
__device__ __forceinline__ float end_scale(const float* of_rows, int has_scales, int token,
                                            int row) {
    return GROUPS == 0 ? of_rows[row] : 1.0f;
}
"""
)
