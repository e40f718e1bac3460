"""What the kernel of `source` does with numbers of 8 and of 16 bits: how codes become fragments of
`wgmma`, in which order activations lie, how a warp goes through its steps, and what results are
multiplied by at the end."""

from serve.kernels.products.cuda_kernels.widening import PACKED, SCALES

EIGHT_BITS = (
    "constexpr bool BFLOAT_SCALES = @BFLOAT_SCALES@;"
    + SCALES
    + r"""
// Codes from 0 to 15 in the low halves of four bytes, less 8, as 8-bit floats of 1 / 512 of that:
// the code less 8, or the sign and 8 less the code. `negative` is 1 for codes below 8. Whole
// numbers up to 15 are the bits of the 8-bit floats 0 to 15 / 512, so sums are 512 times too small.
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
// Of 32 columns, the half j of a product has those with 8 quad + 4 j + (0, 2, 1 or 3). In bytes 0,
// 1, 2, 3: the activations of columns 0, 2, 1, 3, as the codes of a word are.
__device__ __forceinline__ u32 ordered(u32 four) { return __byte_perm(four, 0, 0x3120); }
__device__ __forceinline__ float end_scale(const float* of_tokens, int has_scales, int token,
                                           int row) {
    return has_scales ? 512.0f * of_tokens[token] : 512.0f;
}
"""
)
EIGHT_BIT_PRODUCTS = r"""
        // Sums of a step, which is a group, are multiplied by the group's scale in float32.
        float sums[WIDTH / 2];
        u32 a[2][4][4], scale_pairs[2];
        // `odd`: the second step of its stage.
        auto fetch = [&](u32 (&fragments)[4][4], u32& pair, int step, int odd) {
            const int stage = step / 2 % STAGES;
            if (!odd) wait(arrived + stage * 8, step / (2 * STAGES));
            const u32 at = codes_at + stage * STAGE_BYTES + odd * CODE_BYTES + lane * 16;
            const uint4 first = shared16(at), second = shared16(at + CODE_BYTES / 2);
            pair = shared4(scales_at + step * SCALE_BYTES + group * 4);
            fragments_of(first, second, fragments);
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
                if (odd && piece == 0) request_after(step / 2);
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
        if (count > 0) fetch(a[0], scale_pairs[0], 0, 0);
        for (int step = 0; step < count; step += 2) {
            multiply_step(a[0], scale_pairs[0], a[1], scale_pairs[1], step, 0);
            if (step + 1 < count)
                multiply_step(a[1], scale_pairs[1], a[0], scale_pairs[0], step + 1, 1);
        }
"""
SIXTEEN_BITS = (
    "constexpr bool BFLOAT = @BFLOAT@;\n"
    'static_assert(PIECES == 1 && STAGES > 1, "one product, and a stage ahead");\n'
    + PACKED.lstrip("\n")
    + r"""
// Of both rows of a fragment: 16-bit scales and zero points, each twice in a word.
struct OfRows { u32 scales[2], shifts[2]; };
__device__ __forceinline__ OfRows of_rows(u32 scales, u32 zeros) {
    const u32 points = ZEROS ? zeros : (1u << (BITS - 1)) * 0x10001u;
    OfRows of;
    #pragma unroll
    for (int low = 0; low < 2; ++low) {
        of.scales[low] = __byte_perm(scales, 0, low ? 0x3232 : 0x1010);
        of.shifts[low] = shift_of(__byte_perm(points, 0, low ? 0x3232 : 0x1010));
    }
    return of;
}
// The fragments A of half a step: four products of 16 columns. Weights times their scales are
// rounded to 16 bits, as other kernels of 16-bit activations do.
__device__ __forceinline__ void fragments_of(const uint4 (&codes)[BITS / 4], const OfRows& of,
                                             u32 (&a)[4][4]) {
    #pragma unroll
    for (int m = 0; m < 4; ++m) {
        widened(codes, m, of.shifts, a[m]);
        if (GROUPS) {
            #pragma unroll
            for (int t = 0; t < 4; ++t) a[m][t] = fma2(a[m][t], of.scales[t & 1], 0x80008000u);
        }
    }
}
// Of 32 columns, a lane's four words of each product lie 8 columns apart: whole words, in order.
__device__ __forceinline__ u32 ordered(u32 two) { return two; }
__device__ __forceinline__ float end_scale(const float* of_rows, int has_scales, int token,
                                           int row) {
    return GROUPS == 0 ? of_rows[row] : 1.0f;
}
"""
)
SIXTEEN_BIT_PRODUCTS = r"""
        // A step has two rounds of four products. While the tensor cores multiply one round, the
        // codes of the next are converted; its fragments take the place of those before.
        u32 a[2][4][4];
        uint4 held[BITS / 4];
        OfRows of;
        auto fetch = [&](int step, int round) {
            const int turn = step / STAGE_STEPS, in_stage = step % STAGE_STEPS;
            if (round == 0 && in_stage == 0) wait(arrived + turn % STAGES * 8, turn / STAGES);
            const u32 at = codes_at + turn % STAGES * STAGE_BYTES + in_stage * CODE_BYTES +
                           round * (CODE_BYTES / 2) + lane * 16;
            #pragma unroll
            for (int i = 0; i < BITS / 4; ++i) held[i] = shared16(at + i * 512);
            const u32 words_at = scales_at + step * SCALE_BYTES + group * (WORDS * 4);
            if (GROUPS && (round == 0 || GROUPS == 2)) {
                const u32 zeros = ZEROS ? shared4(words_at + (GROUPS + round) * 4) : 0;
                of = of_rows(shared4(words_at + round * 4), zeros);
            }
        };
        if (GROUPS == 0) of = of_rows(0, 0);
        if (count > 0) fetch(0, 0);
        for (int step = 0; step < count; ++step) {
            #pragma unroll
            for (int round = 0; round < 2; ++round) {
                fragments_of(held, of, a[round]);
                if (round == 0) fetch(step, 1);
                else if (step + 1 < count) fetch(step + 1, 0);
                if (round == 0) wait(filled + step % SLOTS * 8, step / SLOTS);
                const u32 from =
                    descriptor(x_at + step % SLOTS * SLOT_BYTES + round * (SLOT_BYTES / 2));
                begin_products();
                #pragma unroll
                for (int c = 0; c < 4; ++c)
                    multiply_group<true>(total[0], a[round][c], from + c * (2 * CHUNK_BYTES >> 4));
                end_products();
                if (round == 1 && step % STAGE_STEPS == STAGE_STEPS - 1)
                    request_after(step / STAGE_STEPS);
                wait_for_round_before();
                if (round == 0 && step > 0 && lane == 0)
                    arrive_at_block(rank * TEAM + (step - 1) % SLOTS % TEAM,
                                    emptied + (step - 1) % SLOTS * 8);
            }
        }
        wait_for_products(total[0]);
"""
