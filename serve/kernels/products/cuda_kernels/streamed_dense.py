"""The product of 1 to 16 tokens with INT8 or FP8 weights as they are stored, in CUDA C++.

Weights go from memory straight into registers and are the A operand of `mma.m16n8k16`: 16 rows of
outputs. Tokens are B. The columns of a product are chosen so that a lane's weights lie side by
side: lane 4 group + quad loads 16 bytes of row `group` and of the row 8 below, at column 16 quad of
64. Word m of them is its part of product m, which takes the columns 16 quad + 4 m + 2 high + odd:
`high` says which half of the fragment's columns, `odd` which half of a register. A step of a warp
has two of these: 128 bytes of each of 16 rows, which are whole lines of the cache.

Widening to 16-bit floats is exact. The scale of a row comes at the end.

Warps of a block share the columns, and a block takes one tile of rows after the other. Each warp
has PREFETCH steps of its loads under way, across the border between tiles, too. With SPLIT > 1, a
cluster of so many blocks shares the columns, and joins its sums through distributed shared memory.

Bound: the memory. Widening 4 weights takes 8 instructions for INT8 and 10 for FP8; a multiprocessor
issues 32 while the memory delivers the 128 bytes that a warp widens with them.

`@NAME@` are filled in by `source`.
"""

from dataclasses import dataclass
from typing import ClassVar

from serve.kernels.products.cuda_kernels.streaming import Cut
from serve.kernels.products.cuda_kernels.widening import FLOATS, INTEGERS

NAME = "streamed_dense"

SOURCE = r"""
typedef unsigned int u32;
typedef unsigned short u16;

constexpr int WARPS = @WARPS@, TILES = @TILES@, PREFETCH = @PREFETCH@, SPLIT = @SPLIT@;
constexpr int NARROWS = @NARROWS@;
constexpr int STEP = 128, THREADS = WARPS * 32, ROWS = TILES * 16;
constexpr int SIXTEENS = STEP / 16;  // pieces of 16 bytes of a row's weights
constexpr bool SCALED_ROWS = true;

// By tile, row of a fragment (that of the lane's group, and the one 8 below), and 64 columns.
struct Piece {
    uint4 codes[TILES][2][2];
};

@INSTRUCTIONS@@FUNCTIONS@
// Bytes 0 and 1 of a word become `even`, bytes 2 and 3 become `odd`.
__device__ __forceinline__ void widen(u32 word, u32& even, u32& odd) {
    word = __byte_perm(word, 0, 0x3120);
    @WIDEN@
}
extern "C" __global__ void @CLUSTER@ __launch_bounds__(THREADS, @RESIDENT@)
streamed_dense(const u16* __restrict__ x, const uint4* __restrict__ codes,
               const float* __restrict__ row_scales, u16* __restrict__ y, int tokens, int stride,
               int columns, int rows, int steps) {
    extern __shared__ uint4 memory[];
    const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
    const int group = lane >> 2, quad = lane & 3;  // row and columns in a fragment
    const int rank = blockIdx.x % SPLIT, turns = gridDim.x / SPLIT;
    const int share = (steps + SPLIT - 1) / SPLIT;  // steps of this block
    const int begin = rank * share;
    const int end_column = min((begin + share) * STEP, columns);
    const int parts = (rows + ROWS - 1) / ROWS;
    const int slots = (share + WARPS * PREFETCH - 1) / (WARPS * PREFETCH) * PREFETCH;

    // Where the lane's weights of its first step begin, in pieces of 16 bytes. Rows that are not
    // there repeat the last one, and their sums are not stored.
    u32 row_at[TILES][2];
    bool is_there;
    auto go_to = [&](int part) {
        is_there = part < parts;
        #pragma unroll
        for (int r = 0; r < TILES; ++r) {
            #pragma unroll
            for (int below = 0; below < 2; ++below) {
                const int row = min(part * ROWS + r * 16 + below * 8 + group, rows - 1);
                row_at[r][below] = (u32)row * (columns / 16) + (begin + warp) * SIXTEENS + quad;
            }
        }
    };
    auto load = [&](Piece& piece, int slot) {
        const int column = (begin + warp + slot * WARPS) * STEP + quad * 16;
        #pragma unroll
        for (int r = 0; r < TILES; ++r) {
            #pragma unroll
            for (int below = 0; below < 2; ++below) {
                const uint4* from = codes + (row_at[r][below] + slot * (WARPS * SIXTEENS));
                #pragma unroll
                for (int side = 0; side < 2; ++side)
                    stream16(piece.codes[r][below][side], from + side * 4,
                             is_there && column + side * 64 < end_column);
            }
        }
    };
    Piece pieces[PREFETCH] = {};
    go_to(blockIdx.x / SPLIT);
    #pragma unroll
    for (int p = 0; p < PREFETCH; ++p) load(pieces[p], p);

    // Weights are on their way. They never depend on the kernel before, but activations do.
    wait_for_kernel_before();
    const u32 x_at = (u32)__cvta_generic_to_shared(memory);
    const u32 x_bytes = slots * WARPS * STEP * 2 + 16;
    const u32 sums_at = x_at + tokens * x_bytes;
    auto copy = [&](int first) {
        copy_activations(x_at, x_bytes, x, stride, tokens, begin * STEP, end_column, first, slots);
    };
    copy(0);
    copy(PREFETCH);

    // Lanes without a token read another's activations, and their sums are not stored.
    u32 mine[NARROWS];
    #pragma unroll
    for (int n = 0; n < NARROWS; ++n)
        mine[n] = x_at + min(group + 8 * n, tokens - 1) * x_bytes + warp * (STEP * 2) + quad * 32;

    int buffer = 0;
    bool is_first = true;
    for (int part = blockIdx.x / SPLIT; part < parts; part += turns, buffer ^= 1) {
        float total[TILES][NARROWS][4] = {};
        for (int first = 0; first < slots; first += PREFETCH) {
            if (is_first) {
                wait_for_all_but<1>();
                __syncwarp();
            }
            const bool over = first + PREFETCH >= slots;  // the next loads are of the next part
            if (over) go_to(part + turns);
            #pragma unroll
            for (int p = 0; p < PREFETCH; ++p) {
                #pragma unroll
                for (int m = 0; m < 8; m += 2) {  // two products
                    const int side = m / 4;
                    uint4 b[NARROWS];
                    #pragma unroll
                    for (int n = 0; n < NARROWS; ++n)
                        b[n] = shared16(mine[n] + (first + p) * (WARPS * STEP * 2) + side * 128 +
                                        m % 4 * 8);
                    #pragma unroll
                    for (int r = 0; r < TILES; ++r) {
                        const uint4 above = pieces[p].codes[r][0][side];
                        const uint4 below = pieces[p].codes[r][1][side];
                        #pragma unroll
                        for (int j = 0; j < 2; ++j) {
                            u32 a[4];
                            widen(m % 4 ? (j ? above.w : above.z) : (j ? above.y : above.x), a[0],
                                  a[2]);
                            widen(m % 4 ? (j ? below.w : below.z) : (j ? below.y : below.x), a[1],
                                  a[3]);
                            #pragma unroll
                            for (int n = 0; n < NARROWS; ++n)
                                multiply(total[r][n], a, j ? b[n].z : b[n].x, j ? b[n].w : b[n].y);
                        }
                    }
                }
                load(pieces[p], over ? p : first + p + PREFETCH);
                __syncwarp();  // else the compiler gathers all loads behind the last products
            }
            if (is_first) copy(first + 2 * PREFETCH);
        }
        is_first = false;
        join(total, sums_at, buffer, part, rank, tokens, rows, row_scales, y);
    }
    if (SPLIT > 1) barrier();  // others may still read the sums of this block
}
"""


@dataclass(frozen=True)
class Variant(Cut):
    """What a kernel is compiled for."""

    padding: ClassVar[int] = 16

    is_float: bool
    """FP8; else INT8."""
    narrows: int
    """Products for 8 tokens each: 1 or 2."""
    dtype: str
    """Of activations: bf16 or f16."""

    def source(self) -> str:
        widening = FLOATS if self.is_float else INTEGERS
        return self.filled(
            SOURCE, NARROWS=self.narrows, TYPE=self.dtype, WIDEN=widening[self.dtype].strip()
        )
