"""Instructions of Hopper that the kernels of this folder need beside `instructions.INSTRUCTIONS`:
barriers in shared memory, bulk copies, and products of a group of four warps.

The source that they are put into defines `u32`, SPLIT, TEAM and WIDTH, the tokens of one product.
"""

INSTRUCTIONS = r"""
__device__ __forceinline__ void set_barrier(u32 at, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(at), "r"(arrivals) : "memory");
}
// What `set_barrier` wrote is seen by copies, too.
__device__ __forceinline__ void show_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;"
                 ::: "memory");
}
__device__ __forceinline__ void arrive(u32 at) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at) : "memory");
}
__device__ __forceinline__ void expect(u32 at, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(at), "r"(bytes) : "memory");
}
// The barrier has been passed `uses` times before.
__device__ __forceinline__ void wait(u32 at, int uses) {
    asm volatile("{ .reg .pred p;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@!p bra again; }" :: "r"(at), "r"(uses & 1) : "memory");
}
__device__ __forceinline__ void bulk_copy(u32 to, const void* from, int bytes, u32 barrier_at) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];"
                 :: "r"(to), "l"(from), "r"(bytes), "r"(barrier_at) : "memory");
}
// Blocks of a cluster have the same layout of shared memory, so addresses are the same there.
__device__ __forceinline__ void copy_to_block(u32 block, u32 at, int bytes, u32 barrier_at) {
    asm volatile("{ .reg .u32 to, arrival; mapa.shared::cluster.u32 to, %0, %3;\n"
                 "mapa.shared::cluster.u32 arrival, %2, %3;\n"
                 "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
                 "[to], [%0], %1, [arrival]; }"
                 :: "r"(at), "r"(bytes), "r"(barrier_at), "r"(block) : "memory");
}
// Not `.release.cluster`, which waits for all memory: a warp only says what it has read.
__device__ __forceinline__ void arrive_at_block(u32 block, u32 at) {
    if (TEAM == 1) return arrive(at);
    asm volatile("{ .reg .u32 there; mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there]; }"
                 :: "r"(at), "r"(block) : "memory");
}
// All threads of the blocks that load activations for each other. Nothing is read that others wrote
// before but barriers, which `show_barriers` shows; so arrivals need not wait for memory either.
__device__ __forceinline__ void wait_for_blocks() {
    __syncthreads();
    if (TEAM > 1)
        asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait.acquire;"
                     ::: "memory");
}
// What this thread wrote to shared memory is seen by products of warp groups.
__device__ __forceinline__ void show_activations() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void store4(u32 to, u32 word) {
    asm volatile("st.shared.u32 [%0], %1;" :: "r"(to), "r"(word) : "memory");
}
__device__ __forceinline__ u32 shared4(u32 at) {
    u32 d;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(d) : "r"(at) : "memory");
    return d;
}
// Four sums of a block that shares columns.
__device__ __forceinline__ float4 sums_of(u32 at, u32 rank) {
    float4 d;
    if (SPLIT == 1) {
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(d.x), "=f"(d.y), "=f"(d.z), "=f"(d.w) : "r"(at) : "memory");
    } else {
        asm volatile("{ .reg .u32 there; mapa.shared::cluster.u32 there, %4, %5;\n"
                     "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there]; }"
                     : "=f"(d.x), "=f"(d.y), "=f"(d.z), "=f"(d.w) : "r"(at), "r"(rank)
                     : "memory");
    }
    return d;
}
// All four warps of a group: registers that one gives up, others can take.
template <int COUNT> __device__ __forceinline__ void keep_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(COUNT));
}
template <int COUNT> __device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(COUNT));
}
__device__ __forceinline__ void begin_products() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void end_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Sums are operands, so that none is read before they are complete.
__device__ __forceinline__ void wait_for_products(float (&sums)[WIDTH / 2]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" : @SUMS_READ@ :: "memory");
}
// Of the products up to the last `end_products`, some may be under way.
__device__ __forceinline__ void wait_for_round_before() {
    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
}
// 64 rows times WIDTH tokens, for 32 columns of 8-bit floats or 16 of 16-bit ones. Rows come from
// registers, 16 of each warp; `tokens` is the low half of a descriptor of activations in shared
// memory. Tokens come in eights, each 128 bytes behind the one before.
template <bool ADDS>
__device__ __forceinline__ void multiply_group(float (&sums)[WIDTH / 2], const u32 (&a)[4],
                                               u32 tokens) {
    asm volatile("{ .reg .pred p; .reg .b64 all; setp.ne.b32 p, @ADDS@, 0;\n"
                 "mov.b64 all, {@TOKENS@, @HIGH@};\n"
                 "wgmma.mma_async.sync.aligned.m64n@WIDTH@@PRODUCT@ "
                 "{@SUMS@}, {@ROWS@}, all, p, 1, 1@LAST@; }"
                 : @SUMS_READ@
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(tokens), "n"((int)ADDS),
                   "n"(128 >> 4));
}
"""


PRODUCTS = {
    "e4m3": ("k32.f32.e4m3.e4m3", ""),
    "bf16": ("k16.f32.bf16.bf16", ", 0"),
    "f16": ("k16.f32.f16.f16", ", 0"),
}
"""By the type of activations. 16-bit ones could be transposed, and are not."""


def instructions(width: int, dtype: str) -> str:
    """For products of so many tokens of a type: their operands are written out."""
    count = width // 2
    sums = ", ".join(f"%{place}" for place in range(count))
    rows = ", ".join(f"%{count + place}" for place in range(4))
    read = ", ".join(f'"+f"(sums[{place}])' for place in range(count))
    text = INSTRUCTIONS.replace("@SUMS@", sums).replace("@ROWS@", rows).replace("@SUMS_READ@", read)
    text = text.replace("@TOKENS@", f"%{count + 4}").replace("@ADDS@", f"%{count + 5}")
    text = text.replace("@HIGH@", f"%{count + 6}").replace("@WIDTH@", str(width))
    product, last = PRODUCTS[dtype]
    return text.replace("@PRODUCT@", product).replace("@LAST@", last)
