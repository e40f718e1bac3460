"""The product of 1 to 16 tokens with vector-quantized weights, in CUDA C++.

A look-up of a codebook gives VECTOR weights of one column. `ldmatrix` takes an address of 16 bytes
from each lane and hands out the transposed 8x8 matrices that a tensor core wants. So 32 random
look-ups in shared memory are one instruction, and they serve up to 16 tokens. The main and the
residual vector are not added: each has its own product, summed in float32.

Bound: random rows of 16 bytes meet in the same banks. Eight of them take about 2.6 turns instead
of 1. The residual codebook is there COPIES times, one for each place in a group of eight lanes, so
that its rows never meet. Where two copies of the main codebook fit, the packing chooses between
them.

`@NAME@` are filled in by `source`. `vptq_layout` describes the order of the indices.
"""

from dataclasses import dataclass

from serve.kernels.products.cuda_kernels.vptq_instructions import INSTRUCTIONS, WIDENED

NAME = "vptq_few_tokens"
STEP = 256
"""Columns that a warp takes at a time: 8 steps of 32 look-ups."""
NONE, SHARED, DIRECT = 0, 1, 2
"""Where a codebook is: there is none, in shared memory, or gathered from L2 when needed."""

SOURCE = r"""
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;

@INSTRUCTIONS@
constexpr int WARPS = @WARPS@, TOKENS = @TOKENS@, TAIL = @TAIL@, VECTOR = @VECTOR@;
constexpr int MAIN = @MAIN@, RESIDUAL = @RESIDUAL@, COPIES = @COPIES@;
constexpr bool NORM = @NORM@;
constexpr int NONE = 0, SHARED = 1, DIRECT = 2;
constexpr int THREADS = WARPS * 32, STEPS = 8, COLUMNS = 256, AHEAD = @AHEAD@;

struct Indices {
    uint4 low;
    uint4 tail;
};
__device__ __forceinline__ u32 half_of(const u32 (&words)[4], int place) {
    return (words[place >> 1] >> ((place & 1) * 16)) & 0xffffu;
}
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
__device__ __forceinline__ uint4 kept_if(bool kept, const uint4& x) {
    return make_uint4(kept ? x.x : 0, kept ? x.y : 0, kept ? x.z : 0, kept ? x.w : 0);
}

extern "C" __global__ void __launch_bounds__(THREADS, @BLOCKS@)
vptq_few_tokens(const u16* __restrict__ x, const uint4* __restrict__ main_book,
                const uint4* __restrict__ residual_book, const uint4* __restrict__ lows,
                const u8* __restrict__ tails, const u16* __restrict__ scales,
                const u16* __restrict__ biases, u16* __restrict__ y, int tokens, int stride,
                int columns, int rows, int mains, int residuals, int main_bits, int share) {
    extern __shared__ uint4 memory[];
    const int thread = threadIdx.x, lane = thread & 31;
    const int warp = __shfl_sync(0xffffffffu, thread >> 5, 0);  // known to be the same in all lanes
    const int group = lane >> 2, quad = lane & 3;  // row of A and pair of outputs in a fragment
    const int blocks = (columns + COLUMNS - 1) / COLUMNS;
    const int at_once = WARPS / share, my_row = warp / share, part = warp % share;
    const int row_step = gridDim.x * at_once;
    const u32 mask = (1u << main_bits) - 1u;
    let_next_begin();

    // Indices AHEAD blocks of columns before their turn.
    int ahead_row = blockIdx.x * at_once + my_row, ahead_block = part, row = ahead_row;
    auto load = [&](Indices& found) {
        if (ahead_row >= rows) return;
        const size_t at = ((size_t)ahead_row * blocks + ahead_block) * 32 + lane;
        found.low = stream16(lows + at);
        if (TAIL == 1) {
            const uint2 bytes = stream8(tails + at * 8);
            found.tail.x = bytes.x;
            found.tail.y = bytes.y;
        }
        if (TAIL == 2) found.tail = stream16(tails + at * 16);
        ahead_block += share;
        if (ahead_block >= blocks) {
            ahead_block = part;
            ahead_row += row_step;
        }
    };
    Indices pieces[AHEAD] = {};
    #pragma unroll
    for (int p = 0; p < AHEAD; ++p) load(pieces[p]);

    const u32 main_at = (u32)__cvta_generic_to_shared(memory);
    u32 free = main_at;
    if (MAIN == SHARED) {
        for (int i = thread; i < mains; i += THREADS) copy16(free + i * 16, main_book + i);
        free += mains * 16;
    }
    const u32 residual_at = free;
    if (RESIDUAL == SHARED) {
        for (int i = thread; i < residuals; i += THREADS) {
            const uint4 entry = load16(residual_book + i);
            #pragma unroll
            for (int c = 0; c < COPIES; ++c)  // neighbours begin with different copies
                store16(free + (i * COPIES + (c + i) % COPIES) * 16, entry);
        }
        free += residuals * COPIES * 16;
    }
    u32 main_stage = 0, residual_stage = 0;
    if (MAIN == DIRECT) {
        main_stage = free + (warp * STEPS * 32 + lane) * 16;
        free += WARPS * STEPS * 32 * 16;
    }
    if (RESIDUAL == DIRECT) {
        residual_stage = free + (warp * STEPS * 32 + lane) * 16;
        free += WARPS * STEPS * 32 * 16;
    }
    float* partial = reinterpret_cast<float*>(
        reinterpret_cast<char*>(memory) + (free - main_at));

    // Activations of one token: a group of lanes has those of one step, in its own row of A.
    uint4 own = make_uint4(0, 0, 0, 0);
    float own_shift = 0.0f;
    auto load_own = [&](int block) {
        const int k = block * COLUMNS + group * 32 + quad * 8;
        own = make_uint4(0, 0, 0, 0);
        own_shift = 0.0f;
        if (k >= columns) return;
        own = load16(x + k);
        if (NORM) own = normed4(own, load16(scales + k), load16(biases + k), own_shift);
    };
    // All that came so far does not depend on the kernel before, but activations do.
    wait_for_last();
    if (TOKENS == 1) load_own(part);
    copies_done();
    __syncthreads();

    int turn = 0, block = part;
    float sums[4] = {0, 0, 0, 0}, more[4] = {0, 0, 0, 0}, shift = 0.0f, shift_above = 0.0f;
    auto one_block = [&](Indices& piece) {
        const u32 low[4] = {piece.low.x, piece.low.y, piece.low.z, piece.low.w};
        const u32 tail[4] = {piece.tail.x, piece.tail.y, piece.tail.z, piece.tail.w};
        load(piece);
        u32 main_index[STEPS], residual_index[STEPS];
        #pragma unroll
        for (int s = 0; s < STEPS; ++s) {
            u32 both = half_of(low, s);
            if (TAIL == 1) both |= ((tail[s >> 2] >> ((s & 3) * 8)) & 0xffu) << 16;
            if (TAIL == 2) both |= half_of(tail, s) << 16;
            main_index[s] = both & mask;
            residual_index[s] = RESIDUAL == NONE ? 0 : both >> main_bits;
        }
        if (MAIN == DIRECT || RESIDUAL == DIRECT) {
            __syncwarp();  // all lanes have read what is overwritten now
            #pragma unroll
            for (int s = 0; s < STEPS; ++s) {
                if (MAIN == DIRECT) gather16(main_stage + s * 512, main_book + main_index[s]);
                if (RESIDUAL == DIRECT)
                    gather16(residual_stage + s * 512, residual_book + residual_index[s]);
            }
            copies_done();
            __syncwarp();
        }
        const uint4 mine = own;
        shift += own_shift;
        if (TOKENS == 1) load_own(block + share < blocks ? block + share : part);
        #pragma unroll
        for (int s = 0; s < STEPS; ++s) {
            uint4 below = kept_if(group == s, mine), above = make_uint4(0, 0, 0, 0);
            const int k = block * COLUMNS + s * 32 + quad * 8;
            if (TOKENS > 1) {
                below = above;
                if (k < columns) {
                    if (group < tokens) below = load16(x + (size_t)group * stride + k);
                    if (TOKENS > 8 && group + 8 < tokens)
                        above = load16(x + (size_t)(group + 8) * stride + k);
                    if (NORM) {
                        const uint4 scale = load16(scales + k), bias = load16(biases + k);
                        below = normed4(below, scale, bias, shift);
                        if (TOKENS > 8) above = normed4(above, scale, bias, shift_above);
                    }
                }
            }
            u32 b[4];
            rows_of(MAIN == SHARED ? main_at + main_index[s] * 16 : main_stage + s * 512, b);
            multiply(sums, below.x, above.x, below.y, above.y, b[0], b[1]);
            multiply(sums, below.z, above.z, below.w, above.w, b[2], b[3]);
            if (RESIDUAL != NONE) {
                u32 r[4];
                rows_of(RESIDUAL == SHARED
                            ? residual_at + (residual_index[s] * COPIES + lane % COPIES) * 16
                            : residual_stage + s * 512, r);
                multiply(more, below.x, above.x, below.y, above.y, r[0], r[1]);
                multiply(more, below.z, above.z, below.w, above.w, r[2], r[3]);
            }
        }
    };
    // Sums of a row of vectors: over lanes, then over the warps that share it.
    auto end_of_row = [&]() {
        if (NORM) {
            shift += __shfl_xor_sync(0xffffffffu, shift, 1);
            shift += __shfl_xor_sync(0xffffffffu, shift, 2);
            shift_above += __shfl_xor_sync(0xffffffffu, shift_above, 1);
            shift_above += __shfl_xor_sync(0xffffffffu, shift_above, 2);
        }
        // Two sets of sums in turns, so that one barrier for each row is enough.
        float* to = partial + (turn * WARPS + warp) * TOKENS * 8;
        float first = sums[0] + more[0] + shift, second = sums[1] + more[1] + shift;
        if (TOKENS == 1) {
            const bool odd = group & 1;  // has the second output of the pair
            const float other = __shfl_xor_sync(0xffffffffu, odd ? first : second, 4);
            float total = (odd ? second : first) + other;
            total += __shfl_xor_sync(0xffffffffu, total, 8);
            total += __shfl_xor_sync(0xffffffffu, total, 16);
            if (lane < 8) to[quad * 2 + group] = total;
        } else if (group < TOKENS) {
            to[group * 8 + quad * 2] = first;
            to[group * 8 + quad * 2 + 1] = second;
        }
        if (TOKENS > 8) {
            to[(group + 8) * 8 + quad * 2] = sums[2] + more[2] + shift_above;
            to[(group + 8) * 8 + quad * 2 + 1] = sums[3] + more[3] + shift_above;
        }
        barrier(my_row, share);
        const float* of_row = partial + (turn * WARPS + my_row * share) * TOKENS * 8;
        for (int i = part * 32 + lane; i < tokens * VECTOR; i += share * 32) {
            const int output = i % VECTOR, token = i / VECTOR;
            float total = 0.0f;
            for (int other = 0; other < share; ++other)
                total += of_row[(other * TOKENS + token) * 8 + output];
            y[((size_t)token * rows + row) * VECTOR + output] = narrow(total);
        }
        #pragma unroll
        for (int i = 0; i < 4; ++i) sums[i] = more[i] = 0.0f;
        shift = shift_above = 0.0f;
        turn ^= 1;
    };
    while (row < rows) {
        #pragma unroll
        for (int p = 0; p < AHEAD; ++p) {
            if (row >= rows) break;
            one_block(pieces[p]);
            block += share;
            if (block >= blocks) {
                end_of_row();
                block = part;
                row += row_step;
            }
        }
    }
}
"""


@dataclass(frozen=True)
class Variant:
    """What a kernel is compiled for."""

    warps: int
    tokens: int
    """Room for tokens: 1, 8 or 16."""
    tail: int
    """Bytes of an index beyond its first two: 0, 1 or 2."""
    vector: int
    main: int
    """SHARED or DIRECT."""
    residual: int
    copies: int
    """Of the residual codebook in shared memory."""
    norm: bool
    """Columns have scales and biases."""
    dtype: str
    """bf16 or f16."""

    resident: int = 1
    """Blocks that a multiprocessor has room for. The second one is the next kernel's, which copies
    its codebooks before this one has ended."""

    @property
    def grid_blocks(self) -> int:
        """Blocks of this kernel for each multiprocessor: codebooks are copied once."""
        return 1 if SHARED in (self.main, self.residual) else self.resident

    @property
    def ahead(self) -> int:
        """Blocks of columns that indices are loaded before their turn: as registers allow."""
        return 1 if self.warps * self.resident > 16 else 2

    def source(self) -> str:
        values = {
            "WARPS": self.warps, "TOKENS": self.tokens, "TAIL": self.tail, "VECTOR": self.vector,
            "MAIN": self.main, "RESIDUAL": self.residual, "COPIES": self.copies,
            "NORM": "true" if self.norm else "false", "INSTRUCTIONS": INSTRUCTIONS,
            "TYPE": self.dtype, "WIDE": WIDENED[self.dtype], "BLOCKS": self.resident,
            "AHEAD": self.ahead,
        }  # fmt: skip
        text = SOURCE
        for name, value in values.items():
            text = text.replace(f"@{name}@", str(value))
        return text

    def shared_bytes(self, mains: int, residuals: int) -> int:
        """Dynamic shared memory of a block."""
        books = mains * 16 if self.main == SHARED else 0
        books += residuals * self.copies * 16 if self.residual == SHARED else 0
        staged = [self.main, self.residual].count(DIRECT) * self.warps * STEP * 16
        return books + staged + 2 * self.warps * self.tokens * 8 * 4
