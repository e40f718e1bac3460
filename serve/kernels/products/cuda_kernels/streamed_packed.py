"""The product of 1 to 16 tokens with packed INT4 or INT8 weights, in CUDA C++.

Weights go from memory straight into registers, in the order of `streamed_layout`: a lane's 16 bytes
are its part of several A fragments of `mma.m16n8k16` (16 rows of outputs). Tokens are B. Words are
widened to 16-bit floats by bit operations, which is exact: an INT4 code is OR-ed into the mantissa
of 128 (bfloat16) or 1024 (float16), and one packed fma subtracts that and the zero point. Sums of a
group are float32, and so is their product with the group's scale.

A block has the activations of its columns in shared memory, and takes one tile of rows after the
other: WARPS warps share the columns. Each warp has PREFETCH steps of its loads under way, across
the border between tiles, too. With SPLIT > 1, a cluster of so many blocks shares the columns, and
joins its sums through distributed shared memory.

Bound: the memory. Widening takes 7 integer instructions and 4 fmas for 8 INT4 weights, half of what
a multiprocessor can do while the memory delivers them.

`@NAME@` are filled in by `source`.
"""

from dataclasses import dataclass

from serve.kernels.products.cuda_kernels.streaming import Cut
from serve.kernels.products.cuda_kernels.widening import PACKED, SCALES

NAME = "streamed_packed"

SOURCE = r"""
typedef unsigned int u32;
typedef unsigned short u16;

constexpr int WARPS = @WARPS@, TILES = @TILES@, PREFETCH = @PREFETCH@, SPLIT = @SPLIT@;
constexpr int BITS = @BITS@, GROUPS = @GROUPS@, NARROWS = @NARROWS@;
constexpr bool ZEROS = @ZEROS@, BFLOAT = @BFLOAT@, BFLOAT_SCALES = @BFLOAT_SCALES@;
// A step has 128 columns: 8 products, for which a lane has LOADS times 16 bytes.
constexpr int STEP = 128, LOADS = BITS / 2, THREADS = WARPS * 32, ROWS = TILES * 16;
constexpr int WORDS = GROUPS * (ZEROS ? 2 : 1);  // scales and zero points of a lane, for a step
constexpr bool SCALED_ROWS = GROUPS == 0;

struct Piece {
    uint4 codes[TILES][LOADS];
    u32 groups[TILES][WORDS ? WORDS : 1];
};

@INSTRUCTIONS@@FUNCTIONS@@SCALES@@PACKED@
extern "C" __global__ void @CLUSTER@ __launch_bounds__(THREADS, @RESIDENT@)
streamed_packed(const u16* __restrict__ x, const uint4* __restrict__ codes,
                const u32* __restrict__ groups, const float* __restrict__ row_scales,
                u16* __restrict__ y, int tokens, int stride, int columns, int rows, int tiles,
                int steps) {
    extern __shared__ uint4 memory[];
    const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
    const int group = lane >> 2, quad = lane & 3;  // row and pair of columns in a fragment
    const int rank = blockIdx.x % SPLIT, turns = gridDim.x / SPLIT;
    const int share = (steps + SPLIT - 1) / SPLIT;  // steps of this block
    const int begin = rank * share, end = min(begin + share, steps);
    const int parts = (tiles + TILES - 1) / TILES;  // each has ROWS rows
    const int slots = (share + WARPS * PREFETCH - 1) / (WARPS * PREFETCH) * PREFETCH;

    auto load = [&](Piece& piece, int part, int slot) {
        const int step = begin + warp + slot * WARPS;
        const bool valid = part < parts && step < end;
        #pragma unroll
        for (int r = 0; r < TILES; ++r) {
            const size_t at = (size_t)min(part * TILES + r, tiles - 1) * steps + step;
            #pragma unroll
            for (int i = 0; i < LOADS; ++i)
                stream16(piece.codes[r][i], codes + (at * LOADS + i) * 32 + lane, valid);
            const u32* from = groups + (at * 8 + group) * WORDS;
            if (WORDS == 1) load4(piece.groups[r], from, valid);
            if (WORDS == 2) load8(piece.groups[r], from, valid);
            if (WORDS >= 4) load16(piece.groups[r], from, valid);
            if (WORDS == 8) load16(piece.groups[r] + (WORDS == 8 ? 4 : 0), from + 4, valid);
        }
    };

    Piece pieces[PREFETCH] = {};
    #pragma unroll
    for (int p = 0; p < PREFETCH; ++p) load(pieces[p], blockIdx.x / SPLIT, p);

    // Weights are on their way. They never depend on the kernel before, but activations do.
    wait_for_kernel_before();
    const u32 x_at = (u32)__cvta_generic_to_shared(memory);
    const u32 x_bytes = slots * WARPS * STEP * 2 + 64;
    const u32 sums_at = x_at + tokens * x_bytes;
    const int end_column = min(end * STEP, columns);
    auto copy = [&](int first) {
        copy_activations(x_at, x_bytes, x, stride, tokens, begin * STEP, end_column, first, slots);
    };
    copy(0);
    copy(PREFETCH);

    // Lanes without a token read another's activations, and their sums are not stored.
    u32 mine[NARROWS];
    #pragma unroll
    for (int n = 0; n < NARROWS; ++n)
        mine[n] = x_at + min(group + 8 * n, tokens - 1) * x_bytes + quad * 16 +
                  warp * (STEP * 2);

    int buffer = 0;
    bool is_first = true;
    for (int part = blockIdx.x / SPLIT; part < parts; part += turns, buffer ^= 1) {
        float total[TILES][NARROWS][4] = {};
        for (int first = 0; first < slots; first += PREFETCH) {
            if (is_first) {
                wait_for_all_but<1>();
                __syncwarp();
            }
            #pragma unroll
            for (int p = 0; p < PREFETCH; ++p) {
                const int slot = first + p;
                Piece& piece = pieces[p];
                float sums[TILES][NARROWS][4] = {};
                #pragma unroll
                for (int c = 0; c < 4; ++c) {  // 32 columns: two products
                    uint4 b[NARROWS];
                    #pragma unroll
                    for (int n = 0; n < NARROWS; ++n)
                        b[n] = shared16(mine[n] + slot * (WARPS * STEP * 2) + c * 64);
                    const int of = GROUPS ? c * GROUPS / 4 : 0;
                    #pragma unroll
                    for (int r = 0; r < TILES; ++r) {
                        const u32 zero = ZEROS ? piece.groups[r][(GROUPS + of) % 8]
                                               : (1u << (BITS - 1)) * 0x10001u;
                        const u32 shifts[2] = {shift_of(__byte_perm(zero, 0, 0x1010)),
                                               shift_of(__byte_perm(zero, 0, 0x3232))};
                        #pragma unroll
                        for (int j = 0; j < 2; ++j) {
                            u32 a[4];
                            widened(piece.codes[r], 2 * c + j, shifts, a);
                            #pragma unroll
                            for (int n = 0; n < NARROWS; ++n)
                                multiply(GROUPS ? sums[r][n] : total[r][n], a,
                                         j ? b[n].z : b[n].x, j ? b[n].w : b[n].y);
                        }
                        if (GROUPS && (c + 1) * GROUPS % 4 == 0) {
                            const float above = scale_of(piece.groups[r][of], 0);
                            const float below = scale_of(piece.groups[r][of], 1);
                            #pragma unroll
                            for (int n = 0; n < NARROWS; ++n) {
                                #pragma unroll
                                for (int i = 0; i < 4; ++i) {
                                    total[r][n][i] = fmaf(sums[r][n][i], i < 2 ? above : below,
                                                          total[r][n][i]);
                                    sums[r][n][i] = 0.0f;
                                }
                            }
                        }
                    }
                }
                const bool over = slot + PREFETCH >= slots;
                load(piece, over ? part + turns : part, over ? p : slot + PREFETCH);
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

    bits: int
    groups: int
    """Of a step: 1, 2 or 4; 0 for a scale for each row."""
    zeros: bool
    narrows: int
    """Products for 8 tokens each: 1 or 2."""
    dtype: str
    """Of activations: bf16 or f16."""
    scale_dtype: str

    def source(self) -> str:
        source = SOURCE.replace("@PACKED@", PACKED).replace("@SCALES@", SCALES)
        return self.filled(
            source, BITS=self.bits, GROUPS=self.groups, ZEROS=self.zeros, NARROWS=self.narrows,
            BFLOAT=self.dtype == "bf16", BFLOAT_SCALES=self.scale_dtype == "bf16", TYPE=self.dtype,
        )  # fmt: skip
