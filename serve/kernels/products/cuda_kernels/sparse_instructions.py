"""Single instructions that CUDA C++ has no words for. `@TYPE@` is bf16 or f16."""

INSTRUCTIONS = r"""
typedef unsigned int u32;
typedef unsigned short u16;

// The next kernel may begin after the wait only: it may read, without a wait of its own, what the
// kernel before this one wrote.
__device__ __forceinline__ void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;\n griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Not ld.global.nc: the compiler moves such loads behind the wait for the kernel before.
__device__ __forceinline__ uint4 stream16(const uint4* from) {
    uint4 d;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d.x), "=r"(d.y), "=r"(d.z), "=r"(d.w) : "l"(from) : "memory");
    return d;
}
// Writes zeros where `bytes` is 0.
__device__ __forceinline__ void copy16(u32 to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void end_group() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int LATER>
__device__ __forceinline__ void wait_for_all_but() {
    asm volatile("cp.async.wait_group %0;" :: "n"(LATER) : "memory");
}
__device__ __forceinline__ void activations(u32 at, u32 (&b)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3]) : "r"(at) : "memory");
}
// The pair of lanes that holds the metadata: 0 for the first two of four, 1 for the others.
template <int PAIR>
__device__ __forceinline__ void multiply(float (&sums)[4], const u32 (&a)[4], const u32 (&b)[4],
                                         u32 metadata) {
    asm("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.@TYPE@.@TYPE@.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, %13;"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]),
          "r"(metadata), "n"(PAIR));
}
__device__ __forceinline__ u32 fma2(u32 a, u32 b, u32 c) {
    u32 d;
    asm("fma.rn.@TYPE@x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
__device__ __forceinline__ u16 narrow(float value) {
    u16 d;
    asm("cvt.rn.@TYPE@.f32 %0, %1;" : "=h"(d) : "f"(value));
    return d;
}
// (value & mask) | bits in one instruction; the compiler makes two where both are constants.
__device__ __forceinline__ u32 masked(u32 value, u32 mask, u32 bits) {
    u32 d;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(value), "r"(mask), "r"(bits));
    return d;
}
__device__ __forceinline__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ float from_block(u32 at, u32 rank) {
    u32 there;
    float d;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(d) : "r"(there) : "memory");
    return d;
}
"""
