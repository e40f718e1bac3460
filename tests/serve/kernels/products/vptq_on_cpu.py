"""Runs the source of `cuda_kernels/vptq.py` on a CPU: a thread for each CUDA thread.

Its instructions are replaced by functions that do what the PTX manual says. Copies to shared memory
happen when they are waited for, and shared memory begins with NaN. Activations must not be read
before the wait for the kernel in front.
"""

import ctypes
import subprocess
from pathlib import Path

import torch

from serve.kernels.products.cuda_kernels.vptq import Variant
from serve.kernels.products.vptq_prepared import Part
from tests.serve.kernels.products.streamed.cuda_on_cpu import HALVES

BEGIN_OF_KERNEL = "constexpr int WARPS"
INSTRUCTIONS = r"""
#include <pthread.h>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;
struct uint4 { u32 x, y, z, w; };
struct Index { int x; };
#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
static u32 bytes_of(u32 low, u32 high, u32 selector) {
    const unsigned long long both = low | (unsigned long long)high << 32;
    u32 found = 0;
    for (int i = 0; i < 4; ++i) found |= (u32)(both >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return found;
}
static uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }

struct Barrier {
    pthread_barrier_t barrier;
    void set(int count) { pthread_barrier_init(&barrier, nullptr, count); }
    void wait() { pthread_barrier_wait(&barrier); }
};
struct Warp { Barrier barrier; u32 word[32], a[32][4], b[32][2]; };
struct Block { Barrier all, named[16]; char* memory; size_t bytes; std::vector<Warp> warps; };
struct Copy { u32 to; const void* from; };
static const char *x_begin, *x_end;
thread_local Index threadIdx, blockIdx, gridDim;
thread_local Block* block_here;
thread_local Warp* warp_here;
thread_local int lane_here;
thread_local bool waited;
thread_local std::vector<Copy> copies;

// Ends the process where a kernel leaves its shared memory or reads 16 bytes that are not aligned.
static void check(size_t at) { if (at % 16 || at + 16 > block_here->bytes) abort(); }
static void __syncthreads() { block_here->all.wait(); }
static void __syncwarp() { warp_here->barrier.wait(); }
static void barrier(int name, int warps) {
    if (warps == 1) __syncwarp();
    else block_here->named[name].wait();
}
static u32 exchanged(u32 value, int from) {
    warp_here->word[lane_here] = value;
    __syncwarp();
    const u32 found = warp_here->word[from];
    __syncwarp();
    return found;
}
static int __shfl_sync(u32, int value, int from) { return (int)exchanged((u32)value, from); }
static float __shfl_xor_sync(u32, float value, int other) {
    u32 bits;
    memcpy(&bits, &value, 4);
    bits = exchanged(bits, lane_here ^ other);
    memcpy(&value, &bits, 4);
    return value;
}
static u32 __ballot_sync(u32, u32 value) {
    warp_here->word[lane_here] = value;
    __syncwarp();
    u32 found = 0;
    for (int lane = 0; lane < 32; ++lane) found |= (u32)(warp_here->word[lane] != 0) << lane;
    __syncwarp();
    return found;
}
static u32 signs_of(u32 first, u32 second, int m) {
    const u32 low = first >> (8 * m + 7) & 1, high = second >> (8 * m + 7) & 1;
    return low * 0xffffu | high * 0xffff0000u;
}
static size_t __cvta_generic_to_shared(const void* at) {
    return (const char*)at - block_here->memory;
}
static uint4 load16(const void* from) {
    if ((size_t)from % 16 || (!waited && from >= x_begin && from < x_end)) abort();
    return *(const uint4*)from;
}
static void stream16(uint4& d, const void* from, bool valid) { if (valid) d = load16(from); }
static void stream8(uint4& d, const void* from, bool valid) { if (valid) memcpy(&d, from, 8); }
static void store16(u32 to, const uint4& d) {
    check(to);
    memcpy(block_here->memory + to, &d, 16);
}
static void copy16(u32 to, const void* from) {
    check(to);
    memset(block_here->memory + to, 0xff, 16);
    copies.push_back({to, from});
}
static void gather16(u32 to, const void* from) { copy16(to, from); }
static void copies_done() {
    for (auto& one : copies) memcpy(block_here->memory + one.to, one.from, 16);
    copies.clear();
}
static void wait_for_last() { waited = true; }
static void rows_of(u32 at, u32 (&b)[4]) {
    check(at);
    warp_here->word[lane_here] = at;
    __syncwarp();
    for (int m = 0; m < 4; ++m) {
        u16 halves[2];
        for (int h = 0; h < 2; ++h) {
            const u32 row = warp_here->word[8 * m + lane_here % 4 * 2 + h];
            memcpy(&halves[h], block_here->memory + row + lane_here / 4 * 2, 2);
        }
        b[m] = halves[0] | (u32)halves[1] << 16;
    }
    __syncwarp();
}
@HALVES@static void multiply(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    const u32 b[2] = {b0, b1};
    memcpy(warp_here->a[lane_here], a, 16);
    memcpy(warp_here->b[lane_here], b, 8);
    __syncwarp();
    for (int i = 0; i < 4; ++i) {
        const int row = lane_here / 4, below = i / 2, column = lane_here % 4 * 2 + i % 2;
        for (int k = 0; k < 16; ++k) {
            const u32 left = warp_here->a[row * 4 + k % 8 / 2][below + k / 8 * 2];
            const u32 right = warp_here->b[column * 4 + k % 8 / 2][k / 8];
            sums[i] += wide(left >> k % 2 * 16) * wide(right >> k % 2 * 16);
        }
    }
    __syncwarp();
}
"""
LAUNCH = r"""
extern "C" void launch(const u16* x, const uint4* main_book, const uint4* residual_book,
                       const uint4* lows, const u8* tails, const u16* scales, const u16* biases,
                       u16* y, int tokens, int stride, int columns, int rows, int mains,
                       int residuals, int main_bits, int share, int out_stride, int blocks,
                       int bytes) {
    x_begin = (const char*)x;
    x_end = (const char*)(x + (size_t)tokens * stride);
    for (int number = 0; number < blocks; ++number) {
        Block here;
        here.bytes = bytes;
        here.memory = (char*)aligned_alloc(128, (bytes + 127) / 128 * 128);
        memset(here.memory, 0xff, bytes);
        here.all.set(THREADS);
        for (auto& one : here.named) one.set(share * 32);
        here.warps.resize(WARPS);
        for (auto& warp : here.warps) warp.barrier.set(32);
        std::vector<std::thread> threads;
        for (int i = 0; i < THREADS; ++i) threads.emplace_back([&, i] {
            block_here = &here;
            threadIdx.x = i;
            warp_here = &here.warps[i / 32];
            lane_here = i % 32;
            blockIdx.x = number;
            gridDim.x = blocks;
            vptq_few_tokens(x, main_book, residual_book, lows, tails, scales, biases, y, tokens,
                            stride, columns, rows, mains, residuals, main_bits, share, out_stride);
        });
        for (auto& thread : threads) thread.join();
        free(here.memory);
    }
}
"""


def compiled(variant: Variant, folder: Path) -> ctypes.CDLL:
    """The kernel as a library of the CPU. Raises CalledProcessError where g++ fails."""
    kernel = variant.source()
    kernel = kernel[kernel.index(BEGIN_OF_KERNEL) :].replace(
        "extern __shared__ uint4 memory[];", "uint4* memory = (uint4*)block_here->memory;"
    )
    source, library = folder / "kernel.cpp", folder / "kernel.so"
    source.write_text(
        INSTRUCTIONS.replace("@HALVES@", HALVES[variant.dtype].lstrip()) + kernel + LAUNCH
    )
    options = ["-O1", "-std=c++17", "-w", "-fPIC", "-shared", "-pthread", "-o", str(library)]
    subprocess.run(["g++", str(source), *options], check=True)
    return ctypes.CDLL(str(library))


def product(
    library: ctypes.CDLL, variant: Variant, x: torch.Tensor, part: Part, share: int, blocks: int
) -> torch.Tensor:
    """[tokens, N] by the kernel, with so many blocks."""
    tokens, columns = x.shape
    rows = int(part.low.shape[0])
    mains, residuals = int(part.main.shape[0]), int(part.residual.shape[0])
    # Of a merged layer, whose outputs lie between those of others.
    wider = torch.full((tokens, rows * part.vector + 24), torch.nan, dtype=x.dtype)
    out = wider[:, 8 : 8 + rows * part.vector]
    tensors = (x, part.main, part.residual, part.low, part.tail, part.scales, part.biases, out)
    library.launch(
        *(ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors),
        *(tokens, x.stride(0), columns, rows, mains, residuals, part.main_bits, share),
        *(out.stride(0), blocks, variant.shared_bytes(mains, residuals)),
    )
    assert int(wider.isnan().sum()) == 24 * tokens, "nothing else is written"
    return out
