"""Instructions of the GPU as functions, for kernels that stream weights into registers.

The source that they are put into defines `u32`, `u16` and `SPLIT`, the number of blocks that share
columns, and fills in `@TYPE@`, the type of activations: bf16 or f16.
"""

INSTRUCTIONS = r"""
// Does nothing unless a kernel is launched so that it overlaps the one before. The next kernel may
// begin after the wait only: it may read, without a wait of its own, what the one before wrote.
__device__ __forceinline__ void wait_for_kernel_before() {
    asm volatile("griddepcontrol.wait;\n griddepcontrol.launch_dependents;" ::: "memory");
}
// Not ld.global.nc: the compiler moves such loads behind the wait for the kernel before.
__device__ __forceinline__ void stream16(uint4& d, const void* from, bool valid) {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %5, 0;\n"
                 "@p ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4]; }"
                 : "+r"(d.x), "+r"(d.y), "+r"(d.z), "+r"(d.w) : "l"(from), "r"((int)valid)
                 : "memory");
}
__device__ __forceinline__ void load16(u32* d, const void* from, bool valid) {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %5, 0;\n"
                 "@p ld.global.v4.u32 {%0, %1, %2, %3}, [%4]; }"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]) : "l"(from), "r"((int)valid)
                 : "memory");
}
__device__ __forceinline__ void load8(u32* d, const void* from, bool valid) {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %3, 0;\n"
                 "@p ld.global.v2.u32 {%0, %1}, [%2]; }"
                 : "+r"(d[0]), "+r"(d[1]) : "l"(from), "r"((int)valid)
                 : "memory");
}
__device__ __forceinline__ void load4(u32* d, const void* from, bool valid) {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %2, 0;\n"
                 "@p ld.global.u32 %0, [%1]; }"
                 : "+r"(d[0]) : "l"(from), "r"((int)valid)
                 : "memory");
}
__device__ __forceinline__ void copy16(u32 to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" :: "r"(to), "l"(from) : "memory");
}
// Copies come in groups, and groups arrive in their order: all but the last so many.
__device__ __forceinline__ void end_group() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int LATER> __device__ __forceinline__ void wait_for_all_but() {
    asm volatile("cp.async.wait_group %0;" :: "n"(LATER) : "memory");
}
__device__ __forceinline__ void clear16(u32 to) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" :: "r"(to), "r"(0) : "memory");
}
__device__ __forceinline__ void store(u32 to, float value) {
    asm volatile("st.shared.f32 [%0], %1;" :: "r"(to), "f"(value) : "memory");
}
__device__ __forceinline__ uint4 shared16(u32 at) {
    uint4 d;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d.x), "=r"(d.y), "=r"(d.z), "=r"(d.w) : "r"(at) : "memory");
    return d;
}
// (word & mask) | bits and (~word & mask) | bits as one instruction: the compiler makes two of it.
__device__ __forceinline__ u32 masked(u32 word, u32 mask, u32 bits) {
    u32 d;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(word), "r"(mask), "r"(bits));
    return d;
}
__device__ __forceinline__ u32 masked_not(u32 word, u32 mask, u32 bits) {
    u32 d;
    asm("lop3.b32 %0, %1, %2, %3, 0xae;" : "=r"(d) : "r"(word), "r"(mask), "r"(bits));
    return d;
}
__device__ __forceinline__ u32 fma2(u32 a, u32 b, u32 c) {
    u32 d;
    asm("fma.rn.@TYPE@x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
__device__ __forceinline__ void multiply(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.@TYPE@.@TYPE@.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ u16 narrow(float value) {
    u16 d;
    asm("cvt.rn.@TYPE@.f32 %0, %1;" : "=h"(d) : "f"(value));
    return d;
}
// All threads of the blocks that share columns. Only one warp's arrival is a release, which also
// covers what the others of its block wrote before __syncthreads: a release is slow while loads are
// under way.
__device__ __forceinline__ void barrier() {
    __syncthreads();
    if (SPLIT > 1) {
        if (threadIdx.x < 32)
            asm volatile("barrier.cluster.arrive.release;" ::: "memory");
        else
            asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
        asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
    }
}
__device__ __forceinline__ float sum_of(u32 at, u32 rank) {
    float d;
    if (SPLIT == 1) {
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(d) : "r"(at) : "memory");
    } else {
        asm volatile("{ .reg .u32 there; mapa.shared::cluster.u32 there, %1, %2;\n"
                     "ld.shared::cluster.f32 %0, [there]; }"
                     : "=f"(d) : "r"(at), "r"(rank) : "memory");
    }
    return d;
}
"""
