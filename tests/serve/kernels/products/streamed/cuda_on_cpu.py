"""Runs the source of kernels that stream weights on a CPU: a thread for each CUDA thread.

Its instructions are replaced by functions that do what the PTX manual says. Copies to shared memory
happen either at once or as late as the kernel allows, and shared memory begins with NaN, so that a
copy that is not waited for, or one that comes too early, shows.
"""

import ctypes
import subprocess
from pathlib import Path

import torch

from serve.kernels.products.cuda_kernels.streamed_sparse import Variant

BEGIN_OF_KERNEL = "constexpr int WARPS"
INSTRUCTIONS = r"""
#include <pthread.h>
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>
typedef unsigned int u32;
typedef unsigned short u16;
struct uint4 { u32 x, y, z, w; };
struct Index { int x; };
using std::min;
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)

struct Barrier {
    pthread_barrier_t barrier;
    void set(int count) { pthread_barrier_init(&barrier, nullptr, count); }
    void wait() { pthread_barrier_wait(&barrier); }
};
struct Warp { Barrier barrier; u32 address[32], a[32][4], b[32][4], metadata[32]; };
struct Block { Barrier barrier; char* memory; size_t bytes; std::vector<Warp> warps; };
struct Cluster { Barrier barrier; std::vector<Block> blocks; };
struct Copy { u32 to; const void* from; int bytes; };
static bool at_once;
thread_local Index threadIdx, blockIdx, gridDim;
thread_local Cluster* cluster;
thread_local Block* block;
thread_local Warp* warp_here;
thread_local int lane_here;
thread_local std::vector<Copy> open_group;
thread_local std::vector<std::vector<Copy>> groups;

// Ends the process where a kernel leaves its shared memory or reads 16 bytes that are not aligned.
static void check(size_t at) { if (at % 16 || at + 16 > block->bytes) abort(); }
static void __syncthreads() { block->barrier.wait(); }
static size_t __cvta_generic_to_shared(const void* at) { return (const char*)at - block->memory; }
static float __ldg(const float* from) { return *from; }
static void wait_for_kernel_before() {}
static void copy(const Copy& one) {
    check(one.to);
    if (one.bytes) memcpy(block->memory + one.to, one.from, 16);
    else memset(block->memory + one.to, 0, 16);
}
static void copy16(u32 to, const void* from, int bytes) {
    if (at_once) return copy({to, from, bytes});
    memset(block->memory + to, 0xff, 16);
    open_group.push_back({to, from, bytes});
}
static void end_group() { groups.push_back(open_group); open_group.clear(); }
template <int LATER> static void wait_for_all_but() {
    for (; (int)groups.size() > LATER; groups.erase(groups.begin()))
        for (auto& one : groups[0]) copy(one);
}
@HALVES@static u32 fma2(u32 a, u32 b, u32 c) {
    const u32 low = narrow(wide(a) * wide(b) + wide(c));
    return low | (u32)narrow(wide(a >> 16) * wide(b >> 16) + wide(c >> 16)) << 16;
}
static u32 masked(u32 value, u32 mask, u32 bits) { return (value & mask) | bits; }
"""
SPARSE_INSTRUCTIONS = r"""
static uint4 stream16(const uint4* from) { return *from; }
static void activations(u32 at, u32 (&b)[4]) {
    check(at);
    warp_here->address[lane_here] = at;
    warp_here->barrier.wait();
    for (int m = 0; m < 4; ++m) {
        const u32 row = warp_here->address[8 * m + lane_here / 4];
        memcpy(&b[m], block->memory + row + lane_here % 4 * 4, 4);
    }
    warp_here->barrier.wait();
}
template <int PAIR>
static void multiply(float (&sums)[4], const u32 (&a)[4], const u32 (&b)[4], u32 metadata) {
    memcpy(warp_here->a[lane_here], a, 16);
    memcpy(warp_here->b[lane_here], b, 16);
    warp_here->metadata[lane_here] = metadata;
    warp_here->barrier.wait();
    for (int i = 0; i < 4; ++i) {
        const int row = lane_here / 4 + i / 2 * 8, column = lane_here % 4 * 2 + i % 2;
        const int lanes = row % 8 * 4, below = row / 8;
        for (int four = 0; four < 8; ++four) {
            const int side = four / 4, quad = four % 4;
            const u32 kept = warp_here->a[lanes + quad][side * 2 + below];
            const u32 places =
                warp_here->metadata[lanes + 2 * PAIR + side] >> (16 * below + 4 * quad);
            if ((places & 3) >= (places >> 2 & 3)) abort();  // undefined with ordered metadata
            for (int j = 0; j < 2; ++j) {
                const int k = four * 4 + (places >> 2 * j & 3);
                const u32 pair = warp_here->b[column * 4 + k % 8 / 2][k / 8];
                sums[i] += wide(kept >> 16 * j) * wide(pair >> k % 2 * 16);
            }
        }
    }
    warp_here->barrier.wait();
}
static void cluster_barrier() { cluster->barrier.wait(); }
static float from_block(u32 at, u32 rank) {
    float value;
    memcpy(&value, cluster->blocks[rank].memory + at, 4);
    return value;
}
"""
LAUNCH = r"""
#ifndef CLUSTER_BLOCKS
#define CLUSTER_BLOCKS SPLIT
#endif
extern "C" void launch(@PARAMETERS@, int clusters, int bytes, int copies) {
    at_once = copies;
    for (int number = 0; number < clusters; ++number) {
        Cluster here;
        here.barrier.set(CLUSTER_BLOCKS * THREADS);
        here.blocks.resize(CLUSTER_BLOCKS);
        for (auto& one : here.blocks) {
            one.bytes = bytes;
            one.memory = (char*)aligned_alloc(128, (bytes + 127) / 128 * 128);
            memset(one.memory, 0xff, bytes);
            one.barrier.set(THREADS);
            one.warps.resize(THREADS / 32);
            for (auto& warp : one.warps) warp.barrier.set(32);
        }
        std::vector<std::thread> threads;
        for (int i = 0; i < CLUSTER_BLOCKS * THREADS; ++i) threads.emplace_back([&, i] {
            cluster = &here;
            block = &here.blocks[i / THREADS];
            threadIdx.x = i % THREADS;
            warp_here = &block->warps[threadIdx.x / 32];
            lane_here = threadIdx.x % 32;
            blockIdx.x = number * CLUSTER_BLOCKS + i / THREADS;
            gridDim.x = clusters * CLUSTER_BLOCKS;
            @CALL@;
        });
        for (auto& thread : threads) thread.join();
        for (auto& one : here.blocks) free(one.memory);
    }
}
"""
HALVES = {
    "bf16": r"""
static float wide(u32 half) {
    const u32 bits = half << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static u16 narrow(float value) {
    u32 bits;
    memcpy(&bits, &value, 4);
    return (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
""",
    # Before version 13, g++ for ARM has only the older of the two names in C++.
    "f16": r"""
#ifdef __aarch64__
typedef __fp16 half_float;
#else
typedef _Float16 half_float;
#endif
static float wide(u32 half) {
    const u16 bits = (u16)half;
    half_float value;
    memcpy(&value, &bits, 2);
    return (float)value;
}
static u16 narrow(float value) {
    const half_float rounded = (half_float)value;
    u16 bits;
    memcpy(&bits, &rounded, 2);
    return bits;
}
""",
}


PARAMETERS = (
    "const u16* x, const uint4* weights, const float* scales, u16* y, int tokens, int columns, "
    "int rows, int units"
)
CALL = "streamed_sparse(x, weights, scales, y, tokens, columns, rows, units)"


def compiled(kernel: str, dtype: str, parameters: str, call: str, folder: Path) -> ctypes.CDLL:
    """A source without its instructions as a library of the CPU, whose `launch` has these
    parameters. Raises CalledProcessError where g++ fails."""
    kernel = kernel.replace(
        "extern __shared__ uint4 memory[];", "uint4* memory = (uint4*)block->memory;"
    )
    launch = LAUNCH.replace("@PARAMETERS@", parameters).replace("@CALL@", call)
    source, library = folder / "kernel.cpp", folder / "kernel.so"
    source.write_text(INSTRUCTIONS.replace("@HALVES@", HALVES[dtype].lstrip()) + kernel + launch)
    options = ["-O1", "-std=c++17", "-w", "-fPIC", "-shared", "-pthread", "-o", str(library)]
    subprocess.run(["g++", str(source), *options], check=True)
    return ctypes.CDLL(str(library))


def pointers(*tensors: torch.Tensor) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]


def sparse_kernel(variant: Variant, folder: Path) -> ctypes.CDLL:
    kernel = variant.source()
    kernel = SPARSE_INSTRUCTIONS + kernel[kernel.index(BEGIN_OF_KERNEL) :]
    return compiled(kernel, variant.dtype, PARAMETERS, CALL, folder)


def sparse_product(
    library: ctypes.CDLL,
    variant: Variant,
    x: torch.Tensor,
    packed: torch.Tensor,
    scales: torch.Tensor,
    clusters: int,
    at_once: bool,
) -> torch.Tensor:
    """[tokens, N] by the kernel."""
    tokens, columns = x.shape
    rows, units = packed.shape[0] * 16, packed.shape[1]
    out = torch.full((tokens, rows), torch.nan, dtype=x.dtype)
    library.launch(
        *pointers(x, packed, scales, out),
        *(tokens, columns, rows, units, clusters, variant.shared_bytes(tokens, units), at_once),
    )
    return out
