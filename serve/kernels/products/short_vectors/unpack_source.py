"""The source of the kernel that unpacks short vectors. `@NAME@` are filled in by `kernels.py`."""

from serve.kernels.products.short_vectors.look_ups import LOOK_UPS

UNPACK = (
    LOOK_UPS
    + r"""
extern "C" __global__ void __launch_bounds__(THREADS, 1)
vptq_short_unpack(const u32* __restrict__ codes, const uint4* __restrict__ book,
                  const u16* __restrict__ scales, const u16* __restrict__ biases,
                  u16* __restrict__ out, int columns, int rows) {
    extern __shared__ uint4 memory[];
    const int thread = threadIdx.x, lane = thread & 31, group = lane >> 2, quad = lane & 3;
    const u32 memory_at = (u32)__cvta_generic_to_shared(memory);
    const u32 book_at = memory_at + (OWN > 1 ? lane % OWN * 8 : 0);
    const int blocks = (columns + BLOCK - 1) / BLOCK, tiles = (rows + TILE - 1) / TILE;
    uint4 held[HELD] = {};
    request_book(held, book, thread);
    put_book(memory_at, held, book, thread);
    __syncthreads();
    for (int unit = blockIdx.x * WARPS + thread / 32; unit < tiles * blocks;
         unit += gridDim.x * WARPS) {
        const int row = unit / blocks * TILE + group * 4, block = unit % blocks;
        Numbers numbers = {};
        #pragma unroll
        for (int i = 0; i < BITS; ++i)
            stream4(numbers.words[i], codes + ((size_t)unit * BITS + i) * 32 + lane, true);
        #pragma unroll
        for (int c = 0; c < 4; ++c) {
            const int k = block * BLOCK + c * 32 + quad * 8;
            if (k >= columns) break;
            u32 first[8], second[8];  // outputs 0 and 1, 2 and 3 of eight columns
            #pragma unroll
            for (int j = 0; j < 8; ++j)
                load_shared8(book_at + offset_of(numbers, c * 8 + j), first[j], second[j]);
            if (NORM) {
                #pragma unroll
                for (int j = 0; j < 8; ++j) {
                    const float scale = wide(scales[k + j]), bias = wide(biases[k + j]);
                    first[j] = scaled(first[j], scale, bias);
                    second[j] = scaled(second[j], scale, bias);
                }
            }
            #pragma unroll
            for (int o = 0; o < 4; ++o) {
                if (row + o >= rows) break;
                const u32 selector = o % 2 ? 0x7632 : 0x5410;
                u32 pairs[4];
                #pragma unroll
                for (int j = 0; j < 4; ++j)
                    pairs[j] = o < 2 ? __byte_perm(first[2 * j], first[2 * j + 1], selector)
                                     : __byte_perm(second[2 * j], second[2 * j + 1], selector);
                *(uint4*)(out + (size_t)(row + o) * columns + k) =
                    make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
            }
        }
    }
}
"""
)
SCALED = r"""
__device__ __forceinline__ u32 scaled(u32 pair, float scale, float bias) {
    return narrow(fmaf(wide(pair & 0xffffu), scale, bias)) |
           ((u32)narrow(fmaf(wide(pair >> 16), scale, bias)) << 16);
}
"""
