"""Instructions of the GPU as functions, for the kernel of vector-quantized weights.

The source that they are put into defines `u32` and `u16`, and fills in `@TYPE@`, the type of
activations (bf16 or f16), and `@WIDE@`, how one becomes a float32.
"""

INSTRUCTIONS = r"""
// Not ld.global.nc: the compiler moves such loads across the wait for the kernel before. What is
// not valid stays as it is, in the same registers: with a branch the compiler would copy them, and
// so wait for the load.
__device__ __forceinline__ void stream16(uint4& d, const void* from, bool valid) {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %5, 0;\n"
                 "@p ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4]; }"
                 : "+r"(d.x), "+r"(d.y), "+r"(d.z), "+r"(d.w) : "l"(from), "r"((int)valid)
                 : "memory");
}
__device__ __forceinline__ void stream8(uint4& d, const void* from, bool valid) {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %3, 0;\n"
                 "@p ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2]; }"
                 : "+r"(d.x), "+r"(d.y) : "l"(from), "r"((int)valid) : "memory");
}
__device__ __forceinline__ uint4 load16(const void* from) {
    uint4 d;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d.x), "=r"(d.y), "=r"(d.z), "=r"(d.w) : "l"(from) : "memory");
    return d;
}
__device__ __forceinline__ void store16(u32 to, const uint4& d) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
                 :: "r"(to), "r"(d.x), "r"(d.y), "r"(d.z), "r"(d.w) : "memory");
}
// Past L1, and through it: entries that are gathered are often wanted again.
__device__ __forceinline__ void copy16(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void gather16(u32 to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" :: "r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copies_done() {
    asm volatile("cp.async.commit_group;\n cp.async.wait_group 0;" ::: "memory");
}
// Programmatic dependent launch: waits for the kernel before. The next one may begin after the wait
// only: it may read, without a wait of its own, what the kernel before this one wrote.
__device__ __forceinline__ void wait_for_last() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;\n griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// The barrier `name` of so many warps.
__device__ __forceinline__ void barrier(int name, int warps) {
    if (warps == 1)
        __syncwarp();
    else
        asm volatile("bar.sync %0, %1;" :: "r"(name), "r"(warps * 32) : "memory");
}
__device__ __forceinline__ void rows_of(u32 at, u32 (&b)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3]) : "r"(at) : "memory");
}
__device__ __forceinline__ void multiply(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.@TYPE@.@TYPE@.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// __byte_perm, but not moved behind loads that overwrite its operands.
__device__ __forceinline__ u32 bytes_of(u32 low, u32 high, u32 selector) {
    u32 d;
    asm volatile("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(low), "r"(high), "r"(selector));
    return d;
}
// The sign of byte m of the first word in two bytes, and that of the second word in two more.
__device__ __forceinline__ u32 signs_of(u32 first, u32 second, int m) {
    u32 d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(first), "r"(second), "r"(0xcc88 + m * 0x1111));
    return d;
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
"""
WIDENED = {
    "bf16": "d = __uint_as_float(half << 16);",
    "f16": 'asm("cvt.f32.f16 %0, %1;" : "=f"(d) : "h"((u16)half));',
}
