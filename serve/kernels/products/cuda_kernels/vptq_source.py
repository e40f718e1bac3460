"""The source of the kernel that `vptq.py` describes. `@NAME@` are filled in there."""

SOURCE = r"""
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;

@INSTRUCTIONS@
constexpr int WARPS = @WARPS@, TOKENS = @TOKENS@, TAIL = @TAIL@, VECTOR = @VECTOR@;
constexpr int MAIN = @MAIN@, RESIDUAL = @RESIDUAL@, COPIES = @COPIES@;
constexpr bool NORM = @NORM@;
constexpr int SWAPS = @SWAPS@;  // bits of an index that tell whether two steps are swapped
constexpr int NONE = 0, SHARED = 1, DIRECT = 2;
constexpr bool GATHERS = MAIN == DIRECT || RESIDUAL == DIRECT;
constexpr int THREADS = WARPS * 32, STEPS = 8, COLUMNS = 256, AHEAD = @AHEAD@;
constexpr int SETS = @SETS@;  // of sums
constexpr int PAIRS = STEPS / 2;
constexpr int SPARE = 16 - 8 * TAIL;  // lowest bits of a word that hold no index
constexpr int MAIN_SHIFT = SPARE + SWAPS - 4;  // of a word to the byte offset of a main entry

struct Indices {
    uint4 low;
    uint4 tail;
};
@FRAGMENTS@
extern "C" __global__ void __launch_bounds__(THREADS, @BLOCKS@)
vptq_few_tokens(const u16* __restrict__ x, const uint4* __restrict__ main_book,
                const uint4* __restrict__ residual_book, const uint4* __restrict__ lows,
                const u8* __restrict__ tails, const u16* __restrict__ scales,
                const u16* __restrict__ biases, u16* __restrict__ y, int tokens, int stride,
                int columns, int rows, int mains, int residuals, int main_bits, int share,
                int out_stride) {
    extern __shared__ uint4 memory[];
    const int thread = threadIdx.x, lane = thread & 31;
    const int warp = __shfl_sync(0xffffffffu, thread >> 5, 0);  // known to be the same in all lanes
    const int group = lane >> 2, quad = lane & 3;  // row of A and pair of outputs in a fragment
    const int blocks = (columns + COLUMNS - 1) / COLUMNS;
    const int at_once = WARPS / share, my_row = warp / share, part = warp % share;
    const int row_step = gridDim.x * at_once;
    const u32 main_mask = ((1u << main_bits) - 1u) << 4;

    // Indices AHEAD blocks of columns before their turn.
    int ahead_row = blockIdx.x * at_once + my_row, ahead_block = part, row = ahead_row;
    auto load = [&](Indices& found) {
        const bool valid = ahead_row < rows;
        const size_t at = ((size_t)ahead_row * blocks + ahead_block) * 32 + lane;
        stream16(found.low, lows + at, valid);
        if (TAIL == 1) stream8(found.tail, tails + at * 8, valid);
        if (TAIL == 2) stream16(found.tail, tails + at * 16, valid);
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
    u32 residual_at = free;
    if (RESIDUAL == SHARED) {
        for (int i = thread; i < residuals; i += THREADS) {
            const uint4 entry = load16(residual_book + i);
            #pragma unroll
            for (int c = 0; c < COPIES; ++c)  // neighbours begin with different copies
                store16(free + (i * COPIES + (c + i) % COPIES) * 16, entry);
        }
        free += residuals * COPIES * 16;
        residual_at += lane % COPIES * 16;
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
    // All that came so far does not depend on the kernel before, but activations do. The first
    // entries that are gathered do not, either.
    bool waited = !GATHERS;
    if (waited) {
        wait_for_last();
        if (TOKENS == 1) load_own(part);
    }
    copies_done();
    __syncthreads();

    int turn = 0, block = part;
    float sums[SETS][4] = {}, shift = 0.0f, shift_above = 0.0f;
    auto one_block = [&](Indices& piece) {
        const u32 low[4] = {piece.low.x, piece.low.y, piece.low.z, piece.low.w};
        const u32 tail[4] = {piece.tail.x, piece.tail.y, piece.tail.z, piece.tail.w};
        u32 words[STEPS];
        #pragma unroll
        for (int s = 0; s < STEPS; ++s) words[s] = word_of(low, tail, s);
        load(piece);
        u32 main_offset[STEPS], residual_index[STEPS], swapped[PAIRS];
        #pragma unroll
        for (int s = 0; s < STEPS; ++s) {
            const u32 both = words[s];
            const u32 left = both << (-MAIN_SHIFT & 31), right = both >> (MAIN_SHIFT & 31);
            main_offset[s] = (MAIN_SHIFT < 0 ? left : right) & main_mask;
            residual_index[s] = RESIDUAL == NONE ? 0 : both >> (main_bits + SPARE + SWAPS);
            if (s % 2 == 0)
                swapped[s / 2] = SWAPS ? __ballot_sync(0xffffffffu, both & (1u << SPARE)) : 0;
        }
        if (GATHERS) {
            __syncwarp();  // all lanes have read what is overwritten now
            #pragma unroll
            for (int s = 0; s < STEPS; ++s) {
                if (MAIN == DIRECT)
                    gather16(main_stage + s * 512, (const char*)main_book + main_offset[s]);
                if (RESIDUAL == DIRECT)
                    gather16(residual_stage + s * 512, residual_book + residual_index[s]);
            }
            if (!waited) {
                wait_for_last();
                if (TOKENS == 1) load_own(part);
                waited = true;
            }
            copies_done();
            __syncwarp();
        }
        const uint4 mine = own;
        shift += own_shift;
        if (TOKENS == 1) load_own(block + share < blocks ? block + share : part);
        u32 a[2][4], masks[4];
        uint4 xs[2][2];  // of both steps of a pair, for tokens up to 8 and from 8 on
        const int my_pair = group / 2;
        const u32 own_swapped = my_pair / 2 ? (my_pair % 2 ? swapped[3] : swapped[2])
                                            : (my_pair % 2 ? swapped[1] : swapped[0]);
        if (TOKENS == 1) masks_of(masks, own_swapped ^ (group % 2 ? 0u : ~0u), quad);
        #pragma unroll
        for (int i = 0; i < STEPS; ++i) {
            // One token: the first steps of all pairs, then the second ones.
            const int pair = TOKENS == 1 ? i % PAIRS : i / 2;
            const int half = TOKENS == 1 ? i / PAIRS : i % 2, s = pair * 2 + half;
            if (TOKENS == 1 && i % SETS == 0) {
                const bool kept = pair / SETS == my_pair / SETS;
                fragments(a, kept ? mine : make_uint4(0, 0, 0, 0), masks, half ? ~0u : 0u,
                          tokens - 1);
            }
            if (TOKENS > 1 && half == 0) {
                masks_of(masks, swapped[pair], quad);
                #pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int k = block * COLUMNS + (s + h) * 32 + quad * 8;
                    uint4 &below = xs[h][0], &above = xs[h][1];
                    below = above = make_uint4(0, 0, 0, 0);
                    if (k >= columns) continue;
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
            if (TOKENS > 1) chosen(a, xs[half], xs[1 - half], masks);
            u32 b[4];
            float(&set)[4] = sums[TOKENS == 1 ? pair % SETS : 0];
            rows_of(MAIN == SHARED ? main_at + main_offset[s] : main_stage + s * 512, b);
            multiply(set, a[0], b[0], b[1]);
            multiply(set, a[1], b[2], b[3]);
            if (RESIDUAL != NONE) {
                u32 r[4];
                float(&more)[4] = sums[TOKENS == 1 ? pair % SETS : SETS - 1];
                rows_of(RESIDUAL == SHARED ? residual_at + residual_index[s] * (COPIES * 16)
                                           : residual_stage + s * 512, r);
                multiply(more, a[0], r[0], r[1]);
                multiply(more, a[1], r[2], r[3]);
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
        float total[4] = {shift, shift, shift_above, shift_above};
        #pragma unroll
        for (int i = 0; i < SETS; ++i) {
            #pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float sum = sums[i][j];  // of a register: its set is not an address
                total[j] += TOKENS > 1 || i == group / 2 % SETS ? sum : 0.0f;
                sums[i][j] = 0.0f;
            }
        }
        if (TOKENS == 1) {
            const bool odd = group & 1;  // has the second output of the pair
            float whole = odd ? total[1] : total[0];
            whole += __shfl_xor_sync(0xffffffffu, odd ? total[0] : total[1], 4);
            whole += __shfl_xor_sync(0xffffffffu, whole, 8);
            whole += __shfl_xor_sync(0xffffffffu, whole, 16);
            if (lane < 8) to[quad * 2 + group] = whole;
        } else if (group < TOKENS) {
            to[group * 8 + quad * 2] = total[0];
            to[group * 8 + quad * 2 + 1] = total[1];
        }
        if (TOKENS > 8) {
            to[(group + 8) * 8 + quad * 2] = total[2];
            to[(group + 8) * 8 + quad * 2 + 1] = total[3];
        }
        barrier(my_row, share);
        const float* of_row = partial + (turn * WARPS + my_row * share) * TOKENS * 8;
        for (int i = part * 32 + lane; i < tokens * VECTOR; i += share * 32) {
            const int output = i % VECTOR, token = i / VECTOR;
            float result = 0.0f;
            for (int other = 0; other < share; ++other)
                result += of_row[(other * TOKENS + token) * 8 + output];
            y[(size_t)token * out_stride + row * VECTOR + output] = narrow(result);
        }
        shift = shift_above = 0.0f;
        turn ^= 1;
    };
    auto next_block = [&](Indices& piece) {
        one_block(piece);
        block += share;
        if (block < blocks) return;
        end_of_row();
        block = part;
        row += row_step;
    };
    // Written out, and left by `return`: else the compiler copies indices that are under way.
    while (true) {
        if (row >= rows) return;
        next_block(pieces[0]);
        if (AHEAD == 1) continue;
        if (row >= rows) return;
        next_block(pieces[AHEAD - 1]);
    }
}
"""
