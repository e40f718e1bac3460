"""What the kernels of short vectors share: numbers, and codebooks in shared memory."""

LOOK_UPS = r"""
typedef unsigned int u32;
typedef unsigned short u16;

@INSTRUCTIONS@
__device__ __forceinline__ void stream4(u32& d, const u32* from, bool valid) {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %2, 0;\n"
                 "@p ld.global.L1::no_allocate.u32 %0, [%1]; }"
                 : "+r"(d) : "l"(from), "r"((int)valid) : "memory");
}
__device__ __forceinline__ void load_shared8(u32 at, u32& first, u32& second) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(first), "=r"(second) : "r"(at)
                 : "memory");
}
__device__ __forceinline__ uint4 load_shared16(u32 at) {
    uint4 d;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d.x), "=r"(d.y), "=r"(d.z), "=r"(d.w) : "r"(at) : "memory");
    return d;
}
__device__ __forceinline__ void store_shared8(u32 to, u32 first, u32 second) {
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" :: "r"(to), "r"(first), "r"(second)
                 : "memory");
}
__device__ __forceinline__ void prefetch(const void* from) {
    asm volatile("prefetch.global.L2 [%0];" :: "l"(from) : "memory");
}
constexpr int WARPS = @WARPS@, FRAGMENTS = @FRAGMENTS@, BITS = @BITS@;
constexpr int ENTRIES = @ENTRIES@, COPIES = @COPIES@, OWN = @OWN@;
constexpr bool NORM = @NORM@;
constexpr int THREADS = WARPS * 32, BLOCK = 128, TILE = 32, ROOM = FRAGMENTS * 4;
constexpr int OWN_BITS = OWN == 16 ? 4 : OWN == 8 ? 3 : 0;
constexpr int SHIFT = 3 + OWN_BITS;  // of a number to the byte offset of its entry
// Sums of one fragment are two sets, so that products need not wait for each other.
constexpr int SETS = FRAGMENTS == 1 ? 2 : 1;
// Of sums of warps: with two in turns, one barrier for each tile is enough.
constexpr int BUFFERS = FRAGMENTS == 1 ? 2 : 1;
constexpr u32 MASK = ((1u << BITS) - 1u) << SHIFT;

struct Numbers {
    u32 words[BITS];
};
// The byte offset that number s of a lane stands for.
__device__ __forceinline__ u32 offset_of(const Numbers& numbers, int s) {
    const int word = s * BITS / 32, from = s * BITS % 32;
    const u32 low = numbers.words[word];
    if (from + BITS > 32)
        return __funnelshift_r(low, numbers.words[word + 1 < BITS ? word + 1 : word],
                               from - SHIFT) & MASK;
    return (from < SHIFT ? low << (SHIFT - from & 31) : low >> (from - SHIFT & 31)) & MASK;
}
__device__ __forceinline__ void put_entry(u32 at, int entry, u32 first, u32 second) {
    if (OWN > 1) {
        #pragma unroll
        for (int c = 0; c < OWN / 2; ++c)  // neighbours begin with different copies
            store16(at + entry * OWN * 8 + (c + entry) % (OWN / 2) * 16,
                    make_uint4(first, second, first, second));
        return;
    }
    const int line = entry / 16, distance = 1 + line / 15 % 7;
    store_shared8(at + entry * 8, first, second);
    #pragma unroll
    for (int c = 1; c < COPIES; ++c) {
        const int rotation = 1 + (line + (c - 1) * distance) % 15;
        store_shared8(at + (ENTRIES * c + line * 16 + (entry + rotation) % 16) * 8, first, second);
    }
}
// A codebook on its way: a thread has two entries in each of these registers.
constexpr int ROUNDS = (ENTRIES / 2 + THREADS - 1) / THREADS, HELD = ROUNDS < 4 ? ROUNDS : 4;
__device__ __forceinline__ void request_book(uint4 (&held)[HELD], const uint4* book, int thread) {
    #pragma unroll
    for (int i = 0; i < HELD; ++i)
        if (thread + i * THREADS < ENTRIES / 2) held[i] = load16(book + thread + i * THREADS);
}
__device__ __forceinline__ void put_entries(u32 at, int pair, const uint4& two) {
    put_entry(at, pair * 2, two.x, two.y);
    put_entry(at, pair * 2 + 1, two.z, two.w);
}
__device__ __forceinline__ void put_book(u32 at, const uint4 (&held)[HELD], const uint4* book,
                                         int thread) {
    #pragma unroll
    for (int i = 0; i < HELD; ++i)
        if (thread + i * THREADS < ENTRIES / 2) put_entries(at, thread + i * THREADS, held[i]);
    #pragma unroll 4
    for (int i = thread + HELD * THREADS; i < ENTRIES / 2; i += THREADS)
        put_entries(at, i, load16(book + i));
}
"""
