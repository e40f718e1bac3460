"""The source of the kernel that `kernels.py` describes. `@NAME@` are filled in there."""

from serve.kernels.products.short_vectors.look_ups import LOOK_UPS

SOURCE = (
    LOOK_UPS
    + r"""
@FRAGMENT_FUNCTIONS@
extern "C" __global__ void __launch_bounds__(THREADS, @RESIDENT@)
vptq_short_vectors(const u16* __restrict__ x, const u32* __restrict__ codes,
                   const uint4* __restrict__ books, const u16* __restrict__ all_scales,
                   const u16* __restrict__ all_biases, u16* __restrict__ y, int tokens, int stride,
                   int columns, int rows0, int rows1, int rows2, int blocks0, int blocks1,
                   int share, int staged, int out_stride) {
    extern __shared__ uint4 memory[];
    const int thread = threadIdx.x, lane = thread & 31;
    const int warp = __shfl_sync(0xffffffffu, thread >> 5, 0);  // known to be the same in all lanes
    const int group = lane >> 2, quad = lane & 3;
    const int at_once = WARPS / share, my_tile = warp / share, part = warp % share;
    const int blocks = (columns + BLOCK - 1) / BLOCK;

    // The layer that this block has tiles of: each of the merged layers has its own blocks.
    int layer = 0, rows = rows0, first_row = 0, first_tile = 0, number = blockIdx.x;
    int count = blocks0;
    if (number >= blocks0) {
        number -= blocks0;
        layer = 1;
        rows = rows1;
        count = blocks1;
        first_row = rows0;
        first_tile = (rows0 + TILE - 1) / TILE;
        if (number >= blocks1) {
            number -= blocks1;
            layer = 2;
            rows = rows2;
            count = gridDim.x - blocks0 - blocks1;
            first_row += rows1;
            first_tile += (rows1 + TILE - 1) / TILE;
        }
    }
    const int tiles = (rows + TILE - 1) / TILE, tile_step = count * at_once;
    const u16* scales = all_scales + (NORM ? (size_t)layer * columns : 0);
    const u16* biases = all_biases + (NORM ? (size_t)layer * columns : 0);

    // Numbers two blocks of columns before their turn.
    int ahead_tile = number * at_once + my_tile, ahead_block = part;
    auto load = [&](Numbers& found) {
        const bool valid = ahead_tile < tiles;
        const u32* from =
            codes + ((size_t)(first_tile + ahead_tile) * blocks + ahead_block) * BITS * 32 + lane;
        #pragma unroll
        for (int i = 0; i < BITS; ++i) stream4(found.words[i], from + i * 32, valid);
        ahead_block += share;
        if (ahead_block >= blocks) {
            ahead_block = part;
            ahead_tile += tile_step;
        }
    };
    Numbers first_numbers = {}, second_numbers = {};
    load(first_numbers);
    load(second_numbers);

    const u32 memory_at = (u32)__cvta_generic_to_shared(memory);
    const u32 x_at = memory_at + ENTRIES * COPIES * OWN * 8;
    const u32 book_at = memory_at + (OWN > 1 ? lane % OWN * 8 : 0);
    const int x_stride = staged * 2 + 64;  // in bytes: two tokens are in different banks
    float* partial = reinterpret_cast<float*>(
        reinterpret_cast<char*>(memory) + (x_at - memory_at) + tokens * x_stride);
    constexpr int OF_TOKEN = @OF_TOKEN@, OF_WARP = ROOM * OF_TOKEN + 1;
    float* shifts = partial + BUFFERS * WARPS * OF_WARP;
    const uint4* book = books + (size_t)layer * (ENTRIES / 2);
    uint4 held[HELD] = {};
    request_book(held, book, thread);
    if (NORM) {
        for (int k = thread * 64; k < columns; k += THREADS * 64) {
            prefetch(scales + k);
            prefetch(biases + k);
        }
    }

    // Activations of some columns, times their scales, into shared memory. Warps share a token.
    int room = 1;
    while (room < tokens) room *= 2;
    const int parts = room < WARPS ? WARPS / room : 1;
    auto stage = [&](int first) {
        for (int token = warp / parts; token < tokens; token += WARPS / parts) {
            float shift = 0.0f;
            #pragma unroll 2
            for (int k = (warp % parts * 32 + lane) * 8; k < staged; k += parts * 256) {
                uint4 values = make_uint4(0, 0, 0, 0);
                if (first + k < columns) {
                    values = load16(x + (size_t)token * stride + first + k);
                    if (NORM)
                        values = normed4(values, load16(scales + first + k),
                                         load16(biases + first + k), shift);
                }
                store16(x_at + token * x_stride + k * 2, values);
            }
            if (NORM) {
                #pragma unroll
                for (int other = 16; other > 0; other /= 2)
                    shift += __shfl_xor_sync(0xffffffffu, shift, other);
                float* slot = shifts + token * parts + warp % parts;
                if (lane == 0) *slot = first ? *slot + shift : shift;
            }
        }
    };
    wait_for_last();  // all that came so far does not depend on the kernel before
    stage(0);
    put_book(memory_at, held, book, thread);  // it came while activations did
    __syncthreads();

    int tile = number * at_once, block = part, stage_first = 0, turn = 0;
    int stage_end = staged / BLOCK < blocks ? staged / BLOCK : blocks;
    const bool in_stages = stage_end < blocks;
    if (tile + my_tile >= tiles) block = blocks;  // this warp has nothing to do
    bool is_done = false;
    float sums[FRAGMENTS * SETS][4] = {};
    const u32 even = group / 4 ? 0x1044 : 0x4410, odd = group / 4 ? 0x3244 : 0x4432;
    // Row 4 o + t of A has token t where output o of a vector is, else zeros. So outputs 0 and 1
    // are in rows up to 8 and in the first half of its columns, 2 and 3 in the other halves.
    auto one_block = [&](const Numbers& numbers) {
        const u32 x_here = x_at + (block * BLOCK - stage_first + quad * 8) * 2;
        #pragma unroll
        for (int c = 0; c < 4; ++c) {
            u32 values[FRAGMENTS][4];
            #pragma unroll
            for (int f = 0; f < FRAGMENTS; ++f) {
                const int token = f * 4 + group % 4;
                uint4 four = make_uint4(0, 0, 0, 0);
                if (token < tokens) four = load_shared16(x_here + token * x_stride + c * 64);
                values[f][0] = four.x;
                values[f][1] = four.y;
                values[f][2] = four.z;
                values[f][3] = four.w;
            }
            #pragma unroll
            for (int j = 0; j < 8; ++j) {
                u32 b0, b1;
                load_shared8(book_at + offset_of(numbers, c * 8 + j), b0, b1);
                #pragma unroll
                for (int f = 0; f < FRAGMENTS; ++f) {
                    const u32 value = __byte_perm(values[f][j / 2], 0, j % 2 ? odd : even);
                    const u32 a[4] = {value, 0, 0, value};
                    multiply(sums[f * SETS + j % SETS], a, b0, b1);
                }
            }
        }
    };
    // The sums of all warps that share a tile.
    auto end_of_tile = [&]() {
        float* buffer = partial + turn * WARPS * OF_WARP;
        float* to = buffer + warp * OF_WARP;
        #pragma unroll
        for (int f = 0; f < FRAGMENTS; ++f) {
            const int token = f * 4 + group % 4, output = quad * 8 + group / 4;
            const int places[4] = {output, output + 4, output + 2, output + 6};
            #pragma unroll
            for (int i = 0; i < 4; ++i) {
                float sum = 0.0f;
                #pragma unroll
                for (int set = 0; set < SETS; ++set) {
                    sum += sums[f * SETS + set][i];
                    sums[f * SETS + set][i] = 0.0f;
                }
                to[token * OF_TOKEN + places[i]] = sum;
            }
        }
        __syncthreads();
        const int output = (part * 32 + lane) / share, other = lane % share;
        const int row = (tile + my_tile) * TILE + output;
        const float* from = buffer + (my_tile * share + other) * OF_WARP + output;
        for (int token = 0; token < tokens; ++token) {
            float sum = from[token * OF_TOKEN];
            if (NORM)
                for (int i = other; i < parts; i += share) sum += shifts[token * parts + i];
            for (int distance = share / 2; distance > 0; distance /= 2)
                sum += __shfl_xor_sync(0xffffffffu, sum, distance);
            if (other == 0 && row < rows)
                y[(size_t)token * out_stride + first_row + row] = narrow(sum);
        }
        if (BUFFERS > 1) turn ^= 1;
        else __syncthreads();
    };
    // Goes on until this warp has a block of columns whose activations are there. All warps come
    // to the same barriers, with or without a tile.
    auto settle = [&]() {
        while (block >= stage_end) {
            int next = stage_end * BLOCK;
            if (stage_end >= blocks) {
                end_of_tile();
                tile += tile_step;
                if (tile >= tiles) {
                    is_done = true;
                    return;
                }
                block = tile + my_tile < tiles ? part : blocks;
                next = 0;
            }
            if (in_stages) {
                __syncthreads();
                stage(next);
                __syncthreads();
            }
            stage_first = next;
            stage_end = (next + staged) / BLOCK < blocks ? (next + staged) / BLOCK : blocks;
        }
    };
    auto next_block = [&](Numbers& numbers) {
        one_block(numbers);
        load(numbers);
        block += share;
        settle();
    };
    settle();
    // Written out, and left by `return`: else the compiler copies numbers that are under way.
    while (true) {
        if (is_done) return;
        next_block(first_numbers);
        if (is_done) return;
        next_block(second_numbers);
    }
}
"""
)
