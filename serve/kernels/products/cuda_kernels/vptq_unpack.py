"""Unpacks vector-quantized weights into plain ones, for products of many tokens.

A block of 128 threads has 256 columns of one row of vectors at a time. A thread has two neighbours
among them, so that a warp writes whole lines of memory. Indices are in the order of the kernel for
few tokens (`vptq_layout`): the columns of a thread belong to two neighbouring lanes. Both codebooks
are read through the L1 cache. Entries are added, scaled and shifted in 32 bits, and rounded once.
"""

from dataclasses import dataclass

from serve.kernels.products.cuda_kernels.vptq_instructions import WIDENED

NAME = "vptq_unpack"
THREADS = 128
SOURCE = r"""
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;
#define TAIL @TAIL@
#define VECTOR @VECTOR@
#define RESIDUAL @RESIDUAL@
#define NORM @NORM@
#define SWAPS @SWAPS@

__device__ __forceinline__ float wide(u32 half) {
    float d;
    @WIDE@
    return d;
}
__device__ __forceinline__ u32 narrow(float value) {
    u16 d;
    asm("cvt.rn.@TYPE@.f32 %0, %1;" : "=h"(d) : "f"(value));
    return d;
}
__device__ __forceinline__ u32 word_at(const u16* lows, const u8* tails, size_t at) {
    u32 both = lows[at];
    if (TAIL == 1) both |= (u32)tails[at] << 16;
    if (TAIL == 2) both |= (u32)((const u16*)tails)[at] << 16;
    return both;
}
// The lowest bit tells whether a lane's look-ups of this step and its neighbour are swapped.
__device__ __forceinline__ u32 index_at(const u16* lows, const u8* tails, size_t at) {
    const u32 both = word_at(lows, tails, at);
    if (!SWAPS) return both;
    return (both & 1u ? word_at(lows, tails, at ^ 1) : both) >> 1;
}
__device__ __forceinline__ void entry(const uint4* book, u32 index, float (&values)[8]) {
    const uint4 found = __ldg(book + index);
    const u32 pairs[4] = {found.x, found.y, found.z, found.w};
    #pragma unroll
    for (int j = 0; j < 4; ++j) {
        values[2 * j] = wide(pairs[j] & 0xffffu);
        values[2 * j + 1] = wide(pairs[j] >> 16);
    }
}
__device__ __forceinline__ void look_up(const uint4* main_book, const uint4* residual_book,
                                        u32 both, int main_bits, float scale, float bias,
                                        float (&values)[8]) {
    entry(main_book, both & ((1u << main_bits) - 1u), values);
    if (RESIDUAL) {
        float more[8];
        entry(residual_book, both >> main_bits, more);
        #pragma unroll
        for (int j = 0; j < 8; ++j) values[j] += more[j];
    }
    if (NORM) {
        #pragma unroll
        for (int j = 0; j < 8; ++j) values[j] = fmaf(values[j], scale, bias);
    }
}

extern "C" __global__ void __launch_bounds__(128)
vptq_unpack(const uint4* __restrict__ main_book, const uint4* __restrict__ residual_book,
            const u16* __restrict__ lows, const u8* __restrict__ tails,
            const u16* __restrict__ scales, const u16* __restrict__ biases,
            u16* __restrict__ out, int columns, int first, int rows, int main_bits) {
    const int blocks = (columns + 255) / 256;
    const int block = blockIdx.x % blocks, row_step = gridDim.x / blocks;
    const int step = threadIdx.x / 16, pair = threadIdx.x % 16;
    const int lane = 8 * (pair & 3) + 2 * (pair >> 2);
    const int k = block * 256 + step * 32 + 2 * pair;
    if (k >= columns) return;
    float scale[2] = {1.0f, 1.0f}, bias[2] = {0.0f, 0.0f};
    if (NORM) {
        #pragma unroll
        for (int c = 0; c < 2; ++c) {
            scale[c] = wide(scales[k + c]);
            bias[c] = wide(biases[k + c]);
        }
    }
    for (int row = blockIdx.x / blocks; row < rows; row += row_step) {
        const size_t at = ((size_t)(first + row) * blocks + block) * 256 + lane * 8 + step;
        float left[8], right[8];
        look_up(main_book, residual_book, index_at(lows, tails, at), main_bits, scale[0], bias[0],
                left);
        look_up(main_book, residual_book, index_at(lows, tails, at + 8), main_bits, scale[1],
                bias[1], right);
        #pragma unroll
        for (int j = 0; j < VECTOR; ++j)
            *(u32*)(out + ((size_t)row * VECTOR + j) * columns + k) =
                narrow(left[j]) | narrow(right[j]) << 16;
    }
}
"""


@dataclass(frozen=True)
class UnpackVariant:
    """What a kernel is compiled for."""

    tail: int
    """Bytes of an index beyond its first two: 0, 1 or 2."""
    vector: int
    residual: bool
    norm: bool
    """Columns have scales and biases."""
    swaps: bool
    """Indices tell which steps are swapped."""
    dtype: str
    """bf16 or f16."""

    def source(self) -> str:
        values = {
            "TAIL": self.tail, "VECTOR": self.vector, "RESIDUAL": int(self.residual),
            "NORM": int(self.norm), "SWAPS": int(self.swaps), "TYPE": self.dtype,
            "WIDE": WIDENED[self.dtype],
        }  # fmt: skip
        text = SOURCE
        for name, value in values.items():
            text = text.replace(f"@{name}@", str(value))
        return text
