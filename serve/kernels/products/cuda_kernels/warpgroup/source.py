"""The product of 9 to 128 tokens with packed INT4 or INT8 weights, in CUDA C++ for Hopper.

Up to 128 tokens of 8 bits, or 64 of 16 bits.

Weights have the order of `packed_layout`, and are the A operand of `wgmma`: a warp has 16 rows of
outputs, four warps a group. Tokens are B, which the tensor cores read from shared memory. What
depends on the numbers that are multiplied, 8-bit or 16-bit floats, is in `numbers`.

- Each warp has a ring of its own in shared memory for its weights, filled by bulk copies that it
  requests itself: STAGES times 2 KiB are under way. No other warp is waited for.
- COPIERS warps, one or two for each slot, write activations to a ring of SLOTS steps of 128
  columns. The layout of the weights
  wants another order of columns, so they pass through registers.
- Codes of the next products are converted while the tensor cores multiply.
- With TEAM > 1, and one copier for a slot, a cluster of so many blocks has the same columns. Each
  loads a part of the activations, and copies it to the others: all blocks together read them less
  often.
- With SPLIT > 1, a cluster of so many blocks shares the columns, and joins its sums through
  distributed shared memory.

Bounds for 64 tokens and 192 rows, counted, in cycles of a multiprocessor for a step:

| weights, activations | memory | instructions of three warps on a scheduler | tensor cores |
|---|---|---|---|
| INT4, 8 bits | 680 | 630 | 390 |
| INT4, 16 bits | 680 | 640 | 770 |
| INT8, 16 bits | 1360 | 720 | 770 |

`@NAME@` are filled in by `variant.Variant`.
"""

SOURCE = r"""
typedef unsigned int u32;
typedef unsigned short u16;

constexpr int WARPS = @WARPS@, COPIERS = @COPIERS@, STAGES = @STAGES@, SLOTS = @SLOTS@;
constexpr int TOKENS = @TOKENS@, PIECES = @PIECES@, WIDTH = TOKENS / PIECES, SPLIT = @SPLIT@;
constexpr int TEAM = @TEAM@;  // blocks with the same columns; each loads activations for all
constexpr int BITS = @BITS@, GROUPS = @GROUPS@, X_BYTES = @X_BYTES@;
constexpr bool ZEROS = @ZEROS@, MOVES_REGISTERS = @MOVES_REGISTERS@;
constexpr int STEP = 128, ROWS = WARPS * 16, THREADS = (WARPS + COPIERS) * 32;
constexpr int CODE_BYTES = 256 * BITS;  // of a warp's step
constexpr int STAGE_STEPS = 8 / BITS, STAGE_BYTES = STAGE_STEPS * CODE_BYTES;
constexpr int WORDS = GROUPS * (ZEROS ? 2 : 1), SCALE_BYTES = 32 * WORDS;
constexpr int CHUNK_BYTES = TOKENS * 16, SLOT_BYTES = TOKENS * STEP * X_BYTES;
constexpr int CHUNKS = 2 * X_BYTES;  // that 32 columns take; each has 16 bytes of all tokens
constexpr int PER_SLOT = COPIERS / SLOTS, COPIED = TOKENS / PER_SLOT;  // copiers and their tokens
constexpr int HELD = @HELD@, EIGHTS = HELD / 8;  // tokens of a copier's loads
constexpr int BARRIER_BYTES = (2 * SLOTS + WARPS * STAGES) * 8;
constexpr int SUMS_ROW = ROWS + 4;
static_assert(TEAM == 1 || PER_SLOT == 1, "one copier fills a slot for all blocks of a team");

@INSTRUCTIONS@@GROUP_INSTRUCTIONS@
@NUMBERS@
// Where products read activations: without a swizzle, 8 tokens of 16 bytes lie side by side.
// The low half of a descriptor; the high half is the distance of 8 tokens from the next. In a
// cluster, the upper bits of an address have the block's rank: a descriptor has 18 bits of it.
__device__ __forceinline__ u32 descriptor(u32 at) {
    return (at & 0x3ffffu) >> 4 | CHUNK_BYTES >> 4 << 16;
}
extern "C" __global__ void @CLUSTER@ __launch_bounds__(THREADS, 1)
streamed_batch(const unsigned char* __restrict__ x, const uint4* __restrict__ codes,
               const u32* __restrict__ groups, const float* __restrict__ scales,
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

    // Stage number `turn` of all that this warp will need. Scales come with the first.
    auto request = [&](int turn) {
        const u32 barrier_at = arrived + turn % STAGES * 8;
        const int bytes = min(STAGE_STEPS, count - STAGE_STEPS * turn) * CODE_BYTES;
        const bool has_groups = GROUPS && turn == 0;
        expect(barrier_at, bytes + (has_groups ? count * SCALE_BYTES : 0));
        bulk_copy(codes_at + turn % STAGES * STAGE_BYTES,
                  codes + (first_step + STAGE_STEPS * turn) * (CODE_BYTES / 16), bytes, barrier_at);
        if (has_groups)
            bulk_copy(scales_at, groups + first_step * (SCALE_BYTES / 4), count * SCALE_BYTES,
                      barrier_at);
    };
    // Takes the place of a stage. Products of its last codes have begun, so all lanes have read
    // them. Before that, a copy could overtake codes that are on their way from shared memory.
    auto request_after = [&](int turn) {
        if (lane == 0 && STAGE_STEPS * (turn + STAGES) < count) request(turn + STAGES);
    };
    if (warp < WARPS && lane == 0) {
        for (int i = 0; i < STAGES; ++i) set_barrier(arrived + i * 8, 1);
        show_barriers();
        for (int i = 0; i < STAGES && STAGE_STEPS * i < count; ++i) request(i);
    }
    if (thread == WARPS * 32) {
        for (int i = 0; i < SLOTS; ++i) {
            set_barrier(filled + i * 8, PER_SLOT);
            set_barrier(emptied + i * 8, WARPS * TEAM);
        }
        show_barriers();
    }
    // Weights are on their way. They never depend on the kernel before, but activations do.
    wait_for_kernel_before();
    wait_for_blocks();

    if (warp >= WARPS) {
        // Each copies its tokens of whole steps. A fence may wait for the loads of its own warp,
        // but those of other copiers stay under way.
        if (MOVES_REGISTERS) keep_registers<56>();
        const int copier = warp - WARPS, my_first = copier % PER_SLOT * COPIED;
        // Four lanes read 32 columns of a token together, of 8 tokens at once: what a warp reads is
        // in few lines of the cache then, and what it writes is in all banks.
        u32 held[EIGHTS][4][CHUNKS] = {};
        // Of a step, the tokens of this warp from `first` on.
        auto load = [&](int step, int first) {
            const int token = my_first + first + group;
            const unsigned char* from =
                x + (size_t)token * stride + ((begin + step) * STEP + quad * 8) * X_BYTES;
            #pragma unroll
            for (int i = 0; i < EIGHTS; ++i, from += 8 * stride) {
                const bool valid = step < count && token + 8 * i < tokens;
                #pragma unroll
                for (int c = 0; c < 4; ++c) {
                    if (X_BYTES == 1) load8(held[i][c], from + 32 * c, valid);
                    else load16(held[i][c], from + 64 * c, valid);
                }
            }
        };
        // Where another block loads the activations, only their arrival is expected.
        const bool loads = copier % TEAM == place;
        for (int step = copier; step < count && !loads && lane == 0; step += SLOTS) {
            expect(filled + step % SLOTS * 8, SLOT_BYTES);
            wait(filled + step % SLOTS * 8, step / SLOTS);
        }
        if (loads) load(copier / PER_SLOT, 0);
        #pragma unroll 1
        for (int step = copier / PER_SLOT, first = 0; step < count && loads;) {
            if (first == 0 && step >= SLOTS)
                wait(emptied + step % SLOTS * 8, step / SLOTS - 1);
            const int token = my_first + first + group;
            const u32 to = x_at + step % SLOTS * SLOT_BYTES + token * 16 + quad * 4;
            #pragma unroll
            for (int i = 0; i < EIGHTS; ++i) {
                #pragma unroll
                for (int j = 0; j < 4 * CHUNKS && token + 8 * i < tokens; ++j)
                    store4(to + i * 128 + j * CHUNK_BYTES,
                           ordered(held[i][j / CHUNKS][j % CHUNKS]));
            }
            first += HELD;
            if (first == COPIED) {
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
                step += SLOTS;
            }
            load(step, first);
        }
        wait_for_blocks();  // sums take the place of both rings
    } else {
        if (MOVES_REGISTERS) take_registers<152>();
        float total[PIECES][WIDTH / 2] = {};
@PRODUCTS@        wait_for_blocks();
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
        u16 half[4];
        #pragma unroll
        for (int j = 0; j < 4; ++j)
            half[j] = narrow(result[j] * end_scale(scales, has_scales, token,
                                                    min(output + j, rows - 1)));
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
