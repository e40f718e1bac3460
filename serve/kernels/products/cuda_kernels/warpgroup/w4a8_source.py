"""The product of 9 to 128 tokens in FP8 with packed INT4 weights, in CUDA C++ for Hopper.

Weights have the order of `packed_layout`, and are the A operand of `wgmma.m64nNk32`: a warp has 16
rows of outputs, four warps a group. Tokens are B, which the tensor cores read from shared memory.
(`mma.sync` is no choice: on Hopper, the assembler turns its FP8 form into conversions to float16
and products of float16.)

- Each warp has a ring of its own in shared memory for its weights, filled by bulk copies that it
  requests itself: STAGES pairs of steps of 128 columns are under way. No other warp is waited for.
- COPIERS warps write activations to a ring of SLOTS steps. The layout of the weights wants another
  order of columns, so they pass through registers: of 32 columns, the half j of a product has those
  with 8 quad + 4 j + (0, 2, 1 or 3).
- An INT4 code becomes an 8-bit float by integer operations on four codes at once: whole numbers up
  to 15 are the bits of the 8-bit floats 0 to 15 / 512. So sums are 512 times too small.
- Sums of a group of 128 columns are multiplied by the group's scale in float32. Codes of the next
  step are converted while the tensor cores multiply.
- With TEAM > 1, a cluster of so many blocks has the same columns. Each loads a part of the
  activations, and copies it to the others: all blocks together read them less often.
- With SPLIT > 1, a cluster of so many blocks shares the columns, and joins its sums through
  distributed shared memory.

Bounds for 64 tokens, counted: the memory delivers a step of 192 rows in 680 cycles of a
multiprocessor. A warp has 210 instructions for it (8 weights take 7 logical operations, 4 integer
and 4 float multiply-adds), so three warps on a scheduler take as long; tensor cores take 390. For
128 tokens they take 770.

`@NAME@` are filled in by `streamed_w4a8.Variant`.
"""

SOURCE = r"""
typedef unsigned int u32;
typedef unsigned short u16;

constexpr int WARPS = @WARPS@, COPIERS = @COPIERS@, STAGES = @STAGES@, SLOTS = @SLOTS@;
constexpr int TOKENS = @TOKENS@, PIECES = @PIECES@, WIDTH = TOKENS / PIECES, SPLIT = @SPLIT@;
constexpr int TEAM = @TEAM@;  // blocks with the same columns; each loads activations for all
constexpr bool BFLOAT_SCALES = @BFLOAT_SCALES@, MOVES_REGISTERS = @MOVES_REGISTERS@;
constexpr int STEP = 128, ROWS = WARPS * 16, THREADS = (WARPS + COPIERS) * 32;
constexpr int CODE_BYTES = 1024, SCALE_BYTES = 32;  // of a warp's step
constexpr int STAGE_BYTES = 2 * CODE_BYTES;  // two steps at a time
constexpr int CHUNK_BYTES = TOKENS * 16, SLOT_BYTES = TOKENS * STEP;
constexpr int HELD = @HELD@, EIGHTS = HELD / 8;  // tokens of a copier's loads
constexpr int BARRIER_BYTES = (2 * SLOTS + WARPS * STAGES) * 8;
constexpr int SUMS_ROW = ROWS + 4;

@INSTRUCTIONS@@GROUP_INSTRUCTIONS@
__device__ __forceinline__ float scale_of(u32 pair, int half) {
    if (BFLOAT_SCALES) return __uint_as_float(half ? pair & 0xffff0000u : pair << 16);
    float d;
    asm("cvt.f32.f16 %0, %1;" : "=f"(d) : "h"((u16)(half ? pair >> 16 : pair & 0xffffu)));
    return d;
}
// Codes from 0 to 15 in the low halves of four bytes, less 8, as 8-bit floats of 1 / 512 of that:
// the code less 8, or the sign and 8 less the code. `negative` is 1 for codes below 8.
__device__ __forceinline__ u32 floats_of(u32 codes, u32 negative) {
    const u32 flips = negative * 0x7fu + 0x08080808u;  // 0x08, or 0x87
    return ((codes & 0x0f0f0f0fu) ^ flips) + negative;
}
// The fragments A of a step: registers 0 and 2 have row lane / 4, 1 and 3 the row 8 below.
__device__ __forceinline__ void fragments_of(const uint4& first, const uint4& second,
                                             u32 (&a)[4][4]) {
    const u32 words[8] = {first.x, first.y, first.z, first.w,
                          second.x, second.y, second.z, second.w};
    #pragma unroll
    for (int m = 0; m < 8; ++m) {
        const u32 word = words[m];
        a[m / 2][m % 2 * 2] = floats_of(word, ~(word >> 3) & 0x01010101u);
        a[m / 2][m % 2 * 2 + 1] = floats_of(word >> 4, ~(word >> 7) & 0x01010101u);
    }
}
// In bytes 0, 1, 2, 3: the activations of columns 0, 2, 1, 3, as the codes of a word are.
__device__ __forceinline__ u32 swapped(u32 four) { return __byte_perm(four, 0, 0x3120); }
// Where products read activations: without a swizzle, 8 tokens of 16 columns lie side by side.
// The low half of a descriptor; the high half is the distance of 8 tokens from the next. In a
// cluster, the upper bits of an address have the block's rank: a descriptor has 18 bits of it.
__device__ __forceinline__ u32 descriptor(u32 at) {
    return (at & 0x3ffffu) >> 4 | CHUNK_BYTES >> 4 << 16;
}
extern "C" __global__ void @CLUSTER@ __launch_bounds__(THREADS, 1)
streamed_w4a8(const unsigned char* __restrict__ x, const uint4* __restrict__ codes,
              const u32* __restrict__ groups, const float* __restrict__ token_scales,
              u16* __restrict__ y, int tokens, int stride, int rows, int tiles, int steps,
              int has_scales) {
    extern __shared__ uint4 memory[];
    const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
    const int group = lane >> 2, quad = lane & 3;  // row and pair of tokens in a fragment
    // In a cluster: blocks with the same columns, then those with others of the same rows.
    const int place = blockIdx.x % TEAM, rank = blockIdx.x / TEAM % SPLIT;
    const int part = blockIdx.x / (TEAM * SPLIT) * TEAM + place;
    const int share = (steps + SPLIT - 1) / SPLIT;
    const int begin = rank * share, count = min(share, steps - begin);  // steps of this block

    const u32 base = (u32)__cvta_generic_to_shared(memory);
    const u32 filled = base, emptied = base + SLOTS * 8;
    const u32 x_at = base + (BARRIER_BYTES + 127) / 128 * 128;
    const u32 codes_at = x_at + SLOTS * SLOT_BYTES + warp * (STAGES * STAGE_BYTES);
    const u32 scales_at = x_at + SLOTS * SLOT_BYTES + WARPS * STAGES * STAGE_BYTES +
                          warp * (share * SCALE_BYTES);
    const u32 arrived = base + (2 * SLOTS + warp * STAGES) * 8;
    const size_t first_step = (size_t)min(part * WARPS + warp, tiles - 1) * steps + begin;

    auto request = [&](int pair) {
        const u32 barrier_at = arrived + pair % STAGES * 8;
        const int bytes = min(2, count - 2 * pair) * CODE_BYTES;
        expect(barrier_at, bytes + (pair == 0 ? count * SCALE_BYTES : 0));
        bulk_copy(codes_at + pair % STAGES * STAGE_BYTES,
                  codes + (first_step + 2 * pair) * (CODE_BYTES / 16), bytes, barrier_at);
        if (pair == 0)
            bulk_copy(scales_at, groups + first_step * 8, count * SCALE_BYTES, barrier_at);
    };
    if (warp < WARPS && lane == 0) {
        for (int i = 0; i < STAGES; ++i) set_barrier(arrived + i * 8, 1);
        show_barriers();
        for (int i = 0; i < STAGES && 2 * i < count; ++i) request(i);
    }
    if (thread == WARPS * 32) {
        for (int i = 0; i < SLOTS; ++i) {
            set_barrier(filled + i * 8, 1);
            set_barrier(emptied + i * 8, WARPS * TEAM);
        }
        show_barriers();
    }
    // Weights are on their way. They never depend on the kernel before, but activations do.
    wait_for_kernel_before();
    wait_for_blocks();

    if (warp >= WARPS) {
        // Each copies whole steps. A fence may wait for the loads of its own warp, but those of
        // other copiers stay under way.
        if (MOVES_REGISTERS) keep_registers<56>();
        const int four = lane >> 3;
        u32 held[EIGHTS][8] = {};
        // Of a step, the tokens from `first` on.
        auto load = [&](int step, int first) {
            const int token = first + (lane & 7);
            const unsigned char* from =
                x + (size_t)token * stride + (size_t)(begin + step) * STEP + four * 32;
            #pragma unroll
            for (int i = 0; i < EIGHTS; ++i, from += 8 * stride) {
                const bool valid = step < count && token + 8 * i < tokens;
                load16(held[i], from, valid);
                load16(held[i] + 4, from + 16, valid);
            }
        };
        // Where another block loads the activations, only their arrival is expected.
        const bool loads = warp % TEAM == place;
        for (int step = warp - WARPS; step < count && !loads && lane == 0; step += COPIERS) {
            expect(filled + step % SLOTS * 8, SLOT_BYTES);
            wait(filled + step % SLOTS * 8, step / SLOTS);
        }
        if (loads) load(warp - WARPS, 0);
        #pragma unroll 1
        for (int step = warp - WARPS, first = 0; step < count && loads;) {
            if (first == 0 && step >= SLOTS)
                wait(emptied + step % SLOTS * 8, step / SLOTS - 1);
            const int token = first + (lane & 7);
            const u32 to = x_at + step % SLOTS * SLOT_BYTES + four * 2 * CHUNK_BYTES + token * 16;
            #pragma unroll
            for (int i = 0; i < EIGHTS; ++i) {
                const u32 (&h)[8] = held[i];
                if (token + 8 * i < tokens) {
                    store16(to + i * 128, swapped(h[0]), swapped(h[2]), swapped(h[4]),
                            swapped(h[6]));
                    store16(to + i * 128 + CHUNK_BYTES, swapped(h[1]), swapped(h[3]),
                            swapped(h[5]), swapped(h[7]));
                }
            }
            first += HELD;
            if (first == TOKENS) {
                show_activations();
                __syncwarp();
                if (lane == 0) {
                    arrive(filled + step % SLOTS * 8);
                    for (int other = 0; other < TEAM; ++other)
                        if (other != place)
                            copy_to_block(rank * TEAM + other, x_at + step % SLOTS * SLOT_BYTES,
                                          SLOT_BYTES, filled + step % SLOTS * 8);
                }
                first = 0;
                step += COPIERS;
            }
            load(step, first);
        }
        wait_for_blocks();  // sums take the place of both rings
    } else {
        if (MOVES_REGISTERS) take_registers<152>();
        float total[PIECES][WIDTH / 2] = {}, sums[WIDTH / 2];
        u32 a[2][4][4], scales[2];
        // `odd`: the second step of its stage.
        auto fetch = [&](u32 (&fragments)[4][4], u32& pair, int step, int odd) {
            const int stage = step / 2 % STAGES;
            if (!odd) wait(arrived + stage * 8, step / (2 * STAGES));
            const u32 at = codes_at + stage * STAGE_BYTES + odd * CODE_BYTES + lane * 16;
            const uint4 first = shared16(at), second = shared16(at + CODE_BYTES / 2);
            pair = shared4(scales_at + step * SCALE_BYTES + group * 4);
            fragments_of(first, second, fragments);
            if (odd) {
                __syncwarp();
                const int later = step / 2 + STAGES;
                if (lane == 0 && 2 * later < count) request(later);
            }
        };
        auto multiply_step = [&](const u32 (&fragments)[4][4], u32 pair, u32 (&next)[4][4],
                                 u32& next_pair, int step, int odd) {
            wait(filled + step % SLOTS * 8, step / SLOTS);
            const u32 slot = x_at + step % SLOTS * SLOT_BYTES;
            const float above = scale_of(pair, 0), below = scale_of(pair, 1);
            #pragma unroll
            for (int piece = 0; piece < PIECES; ++piece) {
                const u32 from = descriptor(slot + piece * WIDTH * 16);
                begin_products();
                multiply_group<false>(sums, fragments[0], from);
                #pragma unroll
                for (int c = 1; c < 4; ++c)
                    multiply_group<true>(sums, fragments[c], from + c * (2 * CHUNK_BYTES >> 4));
                end_products();
                const bool fetches = piece == PIECES - 1 && step + 1 < count;
                if (PIECES == 1 && fetches) fetch(next, next_pair, step + 1, 1 - odd);
                wait_for_products(sums);
                // Registers are few: the next fragments take the place of these.
                if (PIECES > 1 && fetches) fetch(next, next_pair, step + 1, 1 - odd);
                if (piece == PIECES - 1 && lane == 0)
                    arrive_at_block(rank * TEAM + step % SLOTS % TEAM,
                                    emptied + step % SLOTS * 8);
                #pragma unroll
                for (int i = 0; i < WIDTH / 2; ++i)
                    total[piece][i] = fmaf(sums[i], i & 2 ? below : above, total[piece][i]);
            }
        };
        if (count > 0) fetch(a[0], scales[0], 0, 0);
        for (int step = 0; step < count; step += 2) {
            multiply_step(a[0], scales[0], a[1], scales[1], step, 0);
            if (step + 1 < count) multiply_step(a[1], scales[1], a[0], scales[0], step + 1, 1);
        }
        wait_for_blocks();
        #pragma unroll
        for (int piece = 0; piece < PIECES; ++piece) {
            #pragma unroll
            for (int i = 0; i < WIDTH / 2; ++i) {
                const int token = piece * WIDTH + i / 4 * 8 + 2 * quad + (i & 1);
                const int row = warp * 16 + group + 8 * (i >> 1 & 1);
                if (token < tokens) store(x_at + (token * SUMS_ROW + row) * 4, total[piece][i]);
            }
        }
    }
    barrier();
    for (int i = rank * THREADS + thread; i < tokens * (ROWS / 4); i += SPLIT * THREADS) {
        const int token = i / (ROWS / 4), row = i % (ROWS / 4) * 4, output = part * ROWS + row;
        float result[4] = {};
        #pragma unroll
        for (int other = 0; other < SPLIT; ++other) {
            const float4 four = sums_of(x_at + (token * SUMS_ROW + row) * 4, other * TEAM + place);
            result[0] += four.x;
            result[1] += four.y;
            result[2] += four.z;
            result[3] += four.w;
        }
        const float scale = has_scales ? 512.0f * token_scales[token] : 512.0f;
        u16 half[4];
        #pragma unroll
        for (int j = 0; j < 4; ++j) half[j] = narrow(result[j] * scale);
        u16* to = y + (size_t)token * rows + output;
        if (rows % 4 == 0 && output < rows) {
            *reinterpret_cast<uint2*>(to) = make_uint2(half[0] | (u32)half[1] << 16,
                                                       half[2] | (u32)half[3] << 16);
        } else {
            for (int j = 0; j < 4; ++j)
                if (output + j < rows) to[j] = half[j];
        }
    }
    if (SPLIT > 1) barrier();  // others may still read the sums of this block
}
"""
