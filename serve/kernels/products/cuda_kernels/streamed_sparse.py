"""The product of 1 to 16 tokens with 2:4 sparse 8-bit weights, in CUDA C++.

Weights go from the memory straight into registers, are widened there to the type of the activations
(which is exact), and are the sparse operand of `mma.sp`: 16 rows of outputs, 32 columns, 8 tokens.
`streamed_sparse_layout` describes the order of the bytes. A unit is 256 columns of 16 rows: five
loads of 16 bytes for each lane, the last of which is the metadata of eight products.

Activations are in shared memory as they come, so that `ldmatrix` gives the dense operand. Warps of
a block take different units of the same 16 rows and add their sums at the end. A block keeps its
activations and goes on to further rows; the next units are on their way meanwhile. Where the
activations do not fit, the blocks of a cluster share the columns.

`@NAME@` are filled in by `source`.
"""

from dataclasses import dataclass

from serve.kernels.products.cuda_kernels.sparse_instructions import INSTRUCTIONS
from serve.kernels.products.cuda_kernels.widening import FLOATS, INTEGERS
from serve.kernels.products.streamed.sparse_layout import COLUMNS, ROWS, UNIT_BYTES

NAME = "streamed_sparse"
PADDED_ROWS = 20
"""Room of a token's 16 sums, so that lanes do not meet in a bank."""

SOURCE = r"""
constexpr int WARPS = @WARPS@, TOKENS = @TOKENS@, DEPTH = @DEPTH@, SPLIT = @SPLIT@;
constexpr bool RING = @RING@;
constexpr int THREADS = WARPS * 32, ROWS = 16, PADDED = 20, COLUMNS = 256, UNIT = 160;
constexpr u32 PART_BYTES = COLUMNS * 2;  // of a token's activations, for one unit

struct Unit {
    uint4 values[4];
    uint4 metadata;
};

// Bytes 0 and 2 of a word become `even`, bytes 1 and 3 become `odd`.
__device__ __forceinline__ void widen(u32 word, u32& even, u32& odd) {
    @WIDEN@
}
// Two products of each eight tokens, with the metadata of one word.
struct Pair {
    u32 b[2][TOKENS / 8][4];
};
__device__ __forceinline__ void load(Pair& pair, const u32 (&at)[TOKENS / 8], int number) {
    #pragma unroll
    for (int n = 0; n < TOKENS / 8; ++n) {
        activations(at[n] + number * 128, pair.b[0][n]);
        activations(at[n] + number * 128 + 64, pair.b[1][n]);
    }
}
__device__ __forceinline__ void add(float (&sums)[2][TOKENS / 8][4], uint4 values, u32 metadata,
                                    const Pair& pair) {
    u32 a[2][4];
    widen(values.x, a[0][0], a[0][1]);
    widen(values.y, a[0][2], a[0][3]);
    widen(values.z, a[1][0], a[1][1]);
    widen(values.w, a[1][2], a[1][3]);
    #pragma unroll
    for (int n = 0; n < TOKENS / 8; ++n) {
        multiply<0>(sums[0][n], a[0], pair.b[0][n], metadata);
        multiply<1>(sums[1][n], a[1], pair.b[1][n], metadata);
    }
}
// The activations of the next pair are on their way while a pair is multiplied.
__device__ __forceinline__ void add(float (&sums)[2][TOKENS / 8][4], const Unit& unit,
                                    const u32 (&at)[TOKENS / 8]) {
    Pair even, odd;
    load(even, at, 0);
    load(odd, at, 1);
    add(sums, unit.values[0], unit.metadata.x, even);
    load(even, at, 2);
    add(sums, unit.values[1], unit.metadata.y, odd);
    load(odd, at, 3);
    add(sums, unit.values[2], unit.metadata.z, even);
    add(sums, unit.values[3], unit.metadata.w, odd);
}
extern "C" __global__ void @CLUSTER@ __launch_bounds__(THREADS, @BLOCKS@)
streamed_sparse(const u16* __restrict__ x, const uint4* __restrict__ weights,
                const float* __restrict__ scales, u16* __restrict__ y, int tokens, int columns,
                int rows, int units) {
    extern __shared__ uint4 memory[];
    const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
    const int part = blockIdx.x % SPLIT, stride = gridDim.x / SPLIT, tiles = rows / ROWS;
    const int first_unit = part * units / SPLIT;
    const int count = (part + 1) * units / SPLIT - first_unit;  // units of this block
    const int own = (count - warp + WARPS - 1) / WARPS;         // of this warp, at least one

    int fetch_tile = blockIdx.x / SPLIT, fetch_left = own;
    const size_t tile_step = (size_t)stride * units * UNIT;
    const uint4* fetch_row =
        weights + ((size_t)fetch_tile * units + first_unit + warp) * UNIT + lane;
    const uint4* fetch_at = fetch_row;
    const u32 ring_at = (u32)__cvta_generic_to_shared(memory);
    uint4* const ring = memory + warp * DEPTH * UNIT + lane;
    Unit ready[RING ? 1 : DEPTH];
    // The lane's part of its next unit, which only this lane reads: no barrier is needed.
    auto fetch = [&](int slot) {
        if (fetch_tile < tiles) {
            if (RING) {
                const u32 to = ring_at + ((warp * DEPTH + slot) * UNIT + lane) * 16;
                #pragma unroll
                for (int i = 0; i < 5; ++i) copy16(to + i * 512, fetch_at + i * 32, 16);
            } else {
                #pragma unroll
                for (int i = 0; i < 4; ++i) ready[slot].values[i] = stream16(fetch_at + i * 32);
                ready[slot].metadata = stream16(fetch_at + 128);
            }
            fetch_at += WARPS * UNIT;
            if (--fetch_left == 0) {
                fetch_left = own;
                fetch_tile += stride;
                fetch_row += tile_step;
                fetch_at = fetch_row;
            }
        }
        if (RING) end_group();  // also of nothing: the number of groups tells what has arrived
    };
    // Weights are on their way while activations are copied. They never depend on the kernel
    // before, but activations do.
    #pragma unroll
    for (int i = 0; i < (RING ? 1 : DEPTH); ++i) fetch(i);
    wait_for_kernel_before();

    // Sums come before activations, whose size differs: all blocks of a cluster have them at the
    // same place.
    float* partial = reinterpret_cast<float*>(memory + (RING ? WARPS * DEPTH * UNIT : 0));
    float* joined = partial + 2 * WARPS * TOKENS * PADDED;  // of this block, for the cluster
    const u32 x_at = (u32)__cvta_generic_to_shared(joined + (SPLIT > 1 ? 2 * TOKENS * ROWS : 0));
    const u32 token_bytes = count * PART_BYTES + 16;  // 16 more: lanes do not meet in a bank
    for (int token = 0; token < tokens; ++token) {
        for (int i = thread; i < count * 32; i += THREADS) {
            const int column = first_unit * COLUMNS + i * 8;
            const bool inside = column < columns;
            copy16(x_at + token * token_bytes + i * 16,
                   x + (inside ? (size_t)token * columns + column : 0), inside ? 16 : 0);
        }
    }
    end_group();
    for (int i = 1; i < (RING ? DEPTH : 0); ++i) fetch(i);
    wait_for_all_but<RING ? DEPTH - 1 : 0>();  // the activations and the first unit
    __syncthreads();

    // Rows of a matrix for tokens that are not there repeat the last token; nobody reads the sums.
    u32 lane_at[TOKENS / 8], at[TOKENS / 8];
    #pragma unroll
    for (int n = 0; n < TOKENS / 8; ++n) {
        const int token = min(n * 8 + (lane & 7), tokens - 1);
        lane_at[n] = x_at + token * token_bytes + warp * PART_BYTES + (lane >> 3) * 16;
        at[n] = lane_at[n];
    }
    float sums[2][TOKENS / 8][4] = {};
    int tile = blockIdx.x / SPLIT, left = own, turn = 0;
    float scale = __ldg(scales + tile * ROWS + (thread & 15));

    auto finish = [&]() {
        const int group = lane >> 2, quad = lane & 3;
        // Two sets of sums in turns, so that one barrier for each tile is enough.
        float* mine = partial + (turn * WARPS + warp) * TOKENS * PADDED;
        #pragma unroll
        for (int n = 0; n < TOKENS / 8; ++n) {
            #pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int token = n * 8 + quad * 2 + (i & 1), row = group + (i >> 1) * 8;
                mine[token * PADDED + row] = sums[0][n][i] + sums[1][n][i];
                sums[0][n][i] = sums[1][n][i] = 0.0f;
            }
        }
        __syncthreads();
        for (int i = thread; i < tokens * ROWS; i += THREADS) {
            const float* from = partial + turn * WARPS * TOKENS * PADDED + (i >> 4) * PADDED +
                                (i & 15);
            float total = 0.0f;
            #pragma unroll
            for (int other = 0; other < WARPS; ++other) total += from[other * TOKENS * PADDED];
            if (SPLIT == 1)
                y[(size_t)(i >> 4) * rows + tile * ROWS + (i & 15)] = narrow(total * scale);
            else
                joined[turn * TOKENS * ROWS + i] = total;
        }
        if (SPLIT > 1) {
            cluster_barrier();
            const u32 joined_at = (u32)__cvta_generic_to_shared(joined + turn * TOKENS * ROWS);
            for (int i = thread; i < tokens * ROWS; i += THREADS) {
                if ((i >> 4) % SPLIT != part) continue;
                float total = 0.0f;
                #pragma unroll
                for (int rank = 0; rank < SPLIT; ++rank)
                    total += from_block(joined_at + i * 4, rank);
                y[(size_t)(i >> 4) * rows + tile * ROWS + (i & 15)] = narrow(total * scale);
            }
        }
        turn ^= 1;
        left = own;
        tile += stride;
        if (tile < tiles) scale = __ldg(scales + tile * ROWS + (thread & 15));
    };

    while (tile < tiles) {
        #pragma unroll(RING ? 1 : DEPTH)
        for (int i = 0; i < DEPTH; ++i) {
            if (tile < tiles) {
                if (RING) {
                    wait_for_all_but<DEPTH - 1>();
                    #pragma unroll
                    for (int j = 0; j < 4; ++j) ready[0].values[j] = ring[i * UNIT + j * 32];
                    ready[0].metadata = ring[i * UNIT + 128];
                }
                add(sums, ready[RING ? 0 : i], at);
                fetch(i);
                const bool last = --left == 0;
                #pragma unroll
                for (int n = 0; n < TOKENS / 8; ++n)
                    at[n] = last ? lane_at[n] : at[n] + WARPS * PART_BYTES;
                if (last) finish();
            }
        }
    }
    if (SPLIT > 1) cluster_barrier();  // nobody leaves while others read its sums
}
"""


@dataclass(frozen=True)
class Variant:
    """What a kernel is compiled for."""

    warps: int
    tokens: int
    """Room for tokens: 8 or 16."""
    depth: int
    """Units of each warp that are on their way."""
    is_ring: bool
    """They wait in shared memory, else in registers."""
    split: int
    """Blocks of a cluster, which share the columns."""
    blocks: int
    """That a multiprocessor runs at once."""
    is_float: bool
    """Weights are FP8 (e4m3), else INT8."""
    dtype: str
    """bf16 or f16."""

    def source(self) -> str:
        values = {
            "WARPS": self.warps, "TOKENS": self.tokens, "DEPTH": self.depth, "SPLIT": self.split,
            "RING": str(self.is_ring).lower(), "BLOCKS": self.blocks, "TYPE": self.dtype,
            "CLUSTER": f"__cluster_dims__({self.split}, 1, 1)" if self.split > 1 else "",
            "WIDEN": (FLOATS if self.is_float else INTEGERS)[self.dtype].strip(),
        }  # fmt: skip
        text = INSTRUCTIONS + SOURCE
        for name, value in values.items():
            text = text.replace(f"@{name}@", str(value))
        return text

    def shared_bytes(self, tokens: int, units: int) -> int:
        """Dynamic shared memory of a block: units, activations, and two sets of sums."""
        activations = tokens * (-(-units // self.split) * COLUMNS * 2 + 16)
        sums = 2 * self.tokens * (self.warps * PADDED_ROWS + (ROWS if self.split > 1 else 0)) * 4
        ring = self.warps * self.depth * UNIT_BYTES if self.is_ring else 0
        return ring + activations + sums
