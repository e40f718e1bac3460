"""What the kernels of `streamed_packed` and `streamed_dense` share.

Their sources define STEP, TILES, ROWS, WARPS, THREADS, PREFETCH, SPLIT, NARROWS, and SCALED_ROWS:
whether sums are multiplied by a scale of their row at the end.

Activations are in shared memory. A warp copies those of its own columns, which no other warp reads,
so no barrier is needed. While it takes its first tile of rows, they come as the weights do: one
round of PREFETCH steps ahead. All blocks read the same activations, which takes the L2 cache longer
than their size suggests; so it should not hold up the weights.
"""

from dataclasses import dataclass
from typing import ClassVar

from serve.kernels.products.cuda_kernels.instructions import INSTRUCTIONS

STEP = 128
"""Columns that a warp takes at a time."""
TILE = 16
"""Rows of a fragment."""
SPARE_ROWS = 4
"""Behind a token's sums: the sums of neighbours then are in different banks."""
MOST_SHARED_BYTES = 227 << 10

FUNCTIONS = r"""
// Copies the activations of this warp's steps from slot `first` on, as one group. Behind the last
// column are zeros: steps without weights multiply them with what a step before has left.
__device__ __forceinline__ void copy_activations(u32 to, u32 token_bytes, const u16* x, int stride,
                                                 int tokens, int begin_column, int end_column,
                                                 int first, int slots) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    #pragma unroll 1
    for (int slot = first; slot < min(first + PREFETCH, slots); ++slot) {
        const int place = (slot * WARPS + warp) * STEP + (lane & 15) * 8;
        const bool inside = begin_column + place < end_column;
        for (int token = lane >> 4; token < tokens; token += 2) {
            const u32 at = to + token * token_bytes + place * 2;
            if (inside)
                copy16(at, x + (size_t)token * stride + begin_column + place);
            else
                clear16(at);
        }
    }
    end_group();
}
// Adds the sums of all warps, and of the blocks that share columns, and stores the results. Two
// sets of sums in turns, so that one barrier for each tile is enough.
__device__ __forceinline__ void join(const float (&total)[TILES][NARROWS][4], u32 sums_at,
                                     int buffer, int part, int rank, int tokens, int rows,
                                     const float* row_scales, u16* y) {
    constexpr int SUMS_ROW = ROWS + 4;
    const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
    const int group = lane >> 2, quad = lane & 3;
    const u32 set = sums_at + buffer * (WARPS * tokens * SUMS_ROW * 4);
    #pragma unroll
    for (int n = 0; n < NARROWS; ++n) {
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int token = 8 * n + 2 * quad + (i & 1);
            if (token < tokens) {
                #pragma unroll
                for (int r = 0; r < TILES; ++r) {
                    const int row = r * 16 + group + 8 * (i >> 1);
                    const u32 to = set + ((warp * tokens + token) * SUMS_ROW + row) * 4;
                    store(to, total[r][n][i]);
                }
            }
        }
    }
    barrier();
    for (int i = rank * THREADS + thread; i < tokens * ROWS; i += SPLIT * THREADS) {
        const int token = i / ROWS, row = i % ROWS, output = part * ROWS + row;
        float result = 0.0f;
        #pragma unroll
        for (int other = 0; other < SPLIT; ++other) {
            #pragma unroll
            for (int w = 0; w < WARPS; ++w)
                result += sum_of(set + ((w * tokens + token) * SUMS_ROW + row) * 4, other);
        }
        if (output < rows) {
            if (SCALED_ROWS) result *= row_scales[output];
            y[(size_t)token * rows + output] = narrow(result);
        }
    }
}
"""


@dataclass(frozen=True)
class Cut:
    """How a weight is cut into work."""

    padding: ClassVar[int] = 64
    """Bytes behind a token's activations: those of neighbours then are in different banks."""

    warps: int
    tiles: int
    """Tiles of 16 rows that a block has at a time."""
    prefetch: int
    """Steps of a warp that are under way."""
    resident: int
    """Blocks that a multiprocessor runs at once."""
    split: int
    """Blocks that share columns: 1, 2, 4 or 8."""

    def slots(self, steps: int) -> int:
        """Steps of a warp, with empty ones up to whole rounds of its loads."""
        return -(-steps // (self.split * self.warps * self.prefetch)) * self.prefetch

    def shared_bytes(self, tokens: int, steps: int, rounds: int = 2) -> int:
        """Dynamic shared memory of a block: activations, and a set of sums for each of two tiles of
        rows in turns."""
        activations = tokens * (self.slots(steps) * self.warps * STEP * 2 + self.padding)
        sums = self.warps * tokens * (self.tiles * TILE + SPARE_ROWS) * 4
        return activations + min(rounds, 2) * sums

    def filled(self, source: str, **values: str | int | bool) -> str:
        """A source with its `@NAME@` filled in."""
        text = source.replace("@INSTRUCTIONS@", INSTRUCTIONS).replace("@FUNCTIONS@", FUNCTIONS)
        cluster = f"__cluster_dims__({self.split}, 1, 1)" if self.split > 1 else ""
        known = {
            "WARPS": self.warps, "TILES": self.tiles, "PREFETCH": self.prefetch,
            "RESIDENT": self.resident, "SPLIT": self.split, "CLUSTER": cluster,
        }  # fmt: skip
        for name, value in {**known, **values}.items():
            word = str(value).lower() if isinstance(value, bool) else str(value)
            text = text.replace(f"@{name}@", word)
        return text
