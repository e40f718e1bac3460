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

NAME = "vptq_few_tokens"
STEP = 256
"""Columns that a warp takes at a time: 8 steps of 32 look-ups."""
NONE, SHARED, DIRECT = 0, 1, 2
"""Where a codebook is: there is none, in shared memory, or gathered from L2 when needed."""

SOURCE = r"""
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;

constexpr int WARPS = @WARPS@, TOKENS = @TOKENS@, TAIL = @TAIL@, VECTOR = @VECTOR@;
constexpr int MAIN = @MAIN@, RESIDUAL = @RESIDUAL@, COPIES = @COPIES@;
constexpr bool NORM = @NORM@;
constexpr int NONE = 0, SHARED = 1, DIRECT = 2;
constexpr int THREADS = WARPS * 32, STEPS = 8, COLUMNS = 256;

struct Indices {
    uint4 low;
    uint4 tail;
};

__device__ __forceinline__ uint4 stream16(const void* from) {
    uint4 d;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d.x), "=r"(d.y), "=r"(d.z), "=r"(d.w) : "l"(from));
    return d;
}
__device__ __forceinline__ uint2 stream8(const void* from) {
    uint2 d;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                 : "=r"(d.x), "=r"(d.y) : "l"(from));
    return d;
}
// The address of the first byte of shared memory is a byte offset in its own space.
__device__ __forceinline__ void copy16(u32 to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" :: "r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copies_done() {
    asm volatile("cp.async.commit_group;\n cp.async.wait_group 0;" ::: "memory");
}
__device__ __forceinline__ void rows_of(u32 at, u32 (&b)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3]) : "r"(at) : "memory");
}
__device__ __forceinline__ void multiply(float (&sums)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0,
                                         u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.@TYPE@.@TYPE@.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ u16 narrow(float value) {
    u16 d;
    asm("cvt.rn.@TYPE@.f32 %0, %1;" : "=h"(d) : "f"(value));
    return d;
}
__device__ __forceinline__ float wide(u32 half) {
    float d;
    @WIDE@
    return d;
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

extern "C" __global__ void __launch_bounds__(THREADS, @BLOCKS@)
vptq_few_tokens(const u16* __restrict__ x, const uint4* __restrict__ main_book,
                const uint4* __restrict__ residual_book, const uint4* __restrict__ lows,
                const u8* __restrict__ tails, const u16* __restrict__ scales,
                const u16* __restrict__ biases, u16* __restrict__ y, int tokens, int stride,
                int columns, int rows, int mains, int residuals, int main_bits, int share,
                int out_stride) {
    extern __shared__ uint4 memory[];
    const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
    const int group = lane >> 2, quad = lane & 3;  // token and pair of outputs in a fragment
    const int blocks = (columns + COLUMNS - 1) / COLUMNS;
    const int at_once = WARPS / share, my_row = warp / share, part = warp % share;
    const u32 mask = (1u << main_bits) - 1u;

    auto load = [&](int row, int block) {
        const size_t at = ((size_t)row * blocks + block) * 32 + lane;
        Indices found;
        found.low = stream16(lows + at);
        found.tail = make_uint4(0, 0, 0, 0);
        if (TAIL == 1) {
            const uint2 bytes = stream8(tails + at * 8);
            found.tail.x = bytes.x;
            found.tail.y = bytes.y;
        }
        if (TAIL == 2) found.tail = stream16(tails + at * 16);
        return found;
    };

    const int first_row = blockIdx.x * at_once + my_row, row_step = gridDim.x * at_once;
    Indices next;
    next.low = next.tail = make_uint4(0, 0, 0, 0);
    if (first_row < rows) next = load(first_row, part);  // on its way while codebooks are copied

    u32 free = (u32)__cvta_generic_to_shared(memory);
    const u32 main_at = free;
    if (MAIN == SHARED) {
        for (int i = thread; i < mains; i += THREADS) copy16(free + i * 16, main_book + i);
        free += mains * 16;
    }
    const u32 residual_at = free;
    if (RESIDUAL == SHARED) {
        for (int i = thread; i < residuals * COPIES; i += THREADS)
            copy16(free + i * 16, residual_book + i / COPIES);
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
    copies_done();
    __syncthreads();

    int turn = 0;
    for (int base = blockIdx.x * at_once; base < rows; base += row_step, turn ^= 1) {
        const int row = base + my_row;
        float sums[4] = {0, 0, 0, 0}, more[4] = {0, 0, 0, 0};
        float shift = 0.0f, shift_above = 0.0f;
        for (int block = part; row < rows && block < blocks; block += share) {
            const Indices now = next;
            const bool last = block + share >= blocks;
            const int next_row = last ? row + row_step : row;
            if (next_row < rows) next = load(next_row, last ? part : block + share);
            const u32 low[4] = {now.low.x, now.low.y, now.low.z, now.low.w};
            const u32 tail[4] = {now.tail.x, now.tail.y, now.tail.z, now.tail.w};
            u32 main_index[STEPS], residual_index[STEPS];
            #pragma unroll
            for (int s = 0; s < STEPS; ++s) {
                u32 both = (low[s >> 1] >> ((s & 1) * 16)) & 0xffffu;
                if (TAIL == 1) both |= ((tail[s >> 2] >> ((s & 3) * 8)) & 0xffu) << 16;
                if (TAIL == 2) both |= ((tail[s >> 1] >> ((s & 1) * 16)) & 0xffffu) << 16;
                main_index[s] = both & mask;
                residual_index[s] = RESIDUAL == NONE ? 0 : both >> main_bits;
            }
            if (MAIN == DIRECT || RESIDUAL == DIRECT) {
                __syncwarp();  // all lanes have read what is overwritten now
                #pragma unroll
                for (int s = 0; s < STEPS; ++s) {
                    if (MAIN == DIRECT) copy16(main_stage + s * 512, main_book + main_index[s]);
                    if (RESIDUAL == DIRECT)
                        copy16(residual_stage + s * 512, residual_book + residual_index[s]);
                }
                copies_done();
                __syncwarp();
            }
            #pragma unroll
            for (int s = 0; s < STEPS; ++s) {
                const int k = block * COLUMNS + s * 32 + quad * 8;
                uint4 below = make_uint4(0, 0, 0, 0), above = make_uint4(0, 0, 0, 0);
                if (k < columns) {
                    if (group < tokens)
                        below = __ldg((const uint4*)(x + (size_t)group * stride + k));
                    if (TOKENS > 8 && group + 8 < tokens)
                        above = __ldg((const uint4*)(x + (size_t)(group + 8) * stride + k));
                    if (NORM) {
                        const uint4 scale = __ldg((const uint4*)(scales + k));
                        const uint4 bias = __ldg((const uint4*)(biases + k));
                        below = normed4(below, scale, bias, shift);
                        if (TOKENS > 8) above = normed4(above, scale, bias, shift_above);
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
        }
        if (NORM) {
            shift += __shfl_xor_sync(0xffffffffu, shift, 1);
            shift += __shfl_xor_sync(0xffffffffu, shift, 2);
            shift_above += __shfl_xor_sync(0xffffffffu, shift_above, 1);
            shift_above += __shfl_xor_sync(0xffffffffu, shift_above, 2);
        }
        // Two sets of sums in turns, so that one barrier for each round is enough.
        float* mine = partial + (turn * WARPS + warp) * TOKENS * 8 + quad * 2;
        if (group < TOKENS) {
            mine[group * 8] = sums[0] + more[0] + shift;
            mine[group * 8 + 1] = sums[1] + more[1] + shift;
        }
        if (TOKENS > 8) {
            mine[(group + 8) * 8] = sums[2] + more[2] + shift_above;
            mine[(group + 8) * 8 + 1] = sums[3] + more[3] + shift_above;
        }
        __syncthreads();
        for (int i = thread; i < at_once * tokens * VECTOR; i += THREADS) {
            const int output = i % VECTOR, token = i / VECTOR % tokens, of = i / VECTOR / tokens;
            if (base + of >= rows) continue;
            const int first = (turn * WARPS + of * share) * TOKENS + token;
            const float* from = partial + first * 8 + output;
            float total = 0.0f;
            for (int other = 0; other < share; ++other) total += from[other * TOKENS * 8];
            y[(size_t)token * out_stride + (base + of) * VECTOR + output] = narrow(total);
        }
    }
}
"""
WIDENED = {
    "bf16": "d = __uint_as_float(half << 16);",
    "f16": 'asm("cvt.f32.f16 %0, %1;" : "=f"(d) : "h"((u16)half));',
}


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

    @property
    def resident(self) -> int:
        """Blocks that a multiprocessor runs at once: codebooks leave room for one."""
        return 2 if SHARED not in (self.main, self.residual) and self.warps <= 16 else 1

    def source(self) -> str:
        values = {
            "WARPS": self.warps, "TOKENS": self.tokens, "TAIL": self.tail, "VECTOR": self.vector,
            "MAIN": self.main, "RESIDUAL": self.residual, "COPIES": self.copies,
            "NORM": "true" if self.norm else "false", "TYPE": self.dtype,
            "WIDE": WIDENED[self.dtype], "BLOCKS": self.resident,
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
