"""Indices and fragments of activations, as functions of the kernel that `vptq.py` describes."""

NORMED = r"""
// Two activations times the scales of their columns; adds what the columns' biases give.
__device__ __forceinline__ u32 normed(u32 x, u32 scale, u32 bias, float& shift) {
    const float first = wide(x & 0xffffu), second = wide(x >> 16);
    shift = fmaf(first, wide(bias & 0xffffu), fmaf(second, wide(bias >> 16), shift));
    return narrow(first * wide(scale & 0xffffu)) |
           ((u32)narrow(second * wide(scale >> 16)) << 16);
}
__device__ __forceinline__ uint4 normed4(uint4 x, uint4 scale, uint4 bias, float& shift) {
    return make_uint4(normed(x.x, scale.x, bias.x, shift), normed(x.y, scale.y, bias.y, shift),
                      normed(x.z, scale.z, bias.z, shift), normed(x.w, scale.w, bias.w, shift));
}
"""
FRAGMENTS = (
    r"""
// Both indices of a step in the highest bits of a word.
__device__ __forceinline__ u32 word_of(const u32 (&low)[4], const u32 (&tail)[4], int s) {
    const u32 half = s & 1 ? 0x32 : 0x10;  // bytes of it
    if (TAIL == 0) return bytes_of(low[s >> 1], 0, half << 8 | 0x44);
    if (TAIL == 1) return bytes_of(low[s >> 1], tail[s >> 2], (4 + (s & 3)) << 12 | half << 4);
    return bytes_of(low[s >> 1], tail[s >> 1], (half + 0x44) << 8 | half);
}
"""
    + NORMED.lstrip()
    + r"""
// Which of a lane's activations of two steps are swapped: for each register of a step, a mask of
// its halves. Bit 8 m + r of `swapped` is that of column r of matrix m.
__device__ __forceinline__ void masks_of(u32 (&masks)[4], u32 swapped, int quad) {
    const u32 mine = swapped >> (2 * quad);
    const u32 first = mine << 7, second = mine << 6;
    #pragma unroll
    for (int m = 0; m < 4; ++m) masks[m] = signs_of(first, second, m);
}
// Fragments of A for one token: rows up to 8, less what the masks exclude. Rows from 8 on are not
// used, but their registers must be no constants, and not those of another fragment: the compiler
// would build the fragments anew for each product. It does not know that `zero` is 0.
__device__ __forceinline__ void fragments(u32 (&a)[2][4], const uint4& x, const u32 (&masks)[4],
                                          u32 inverted, u32 zero) {
    const u32 first[4] = {x.x & (masks[0] ^ inverted), x.z ^ zero, x.y & (masks[1] ^ inverted),
                          x.w ^ zero};
    const u32 second[4] = {x.z & (masks[2] ^ inverted), x.x + zero, x.w & (masks[3] ^ inverted),
                           x.y + zero};
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        a[0][i] = first[i];
        a[1][i] = second[i];
    }
}
// Fragments of A for more tokens: where masks are set, the activations of the other step.
__device__ __forceinline__ void chosen(u32 (&a)[2][4], const uint4 (&x)[2], const uint4 (&other)[2],
                                       const u32 (&masks)[4]) {
    #pragma unroll
    for (int i = 0; i < 2; ++i) {
        a[0][i] = (x[i].x & ~masks[0]) | (other[i].x & masks[0]);
        a[0][i + 2] = (x[i].y & ~masks[1]) | (other[i].y & masks[1]);
        a[1][i] = (x[i].z & ~masks[2]) | (other[i].z & masks[2]);
        a[1][i + 2] = (x[i].w & ~masks[3]) | (other[i].w & masks[3]);
    }
}
"""
)
