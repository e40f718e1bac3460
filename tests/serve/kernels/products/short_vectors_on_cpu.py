"""Runs the sources of `short_vectors` on a CPU, in the way of `vptq_on_cpu`."""

import ctypes
import subprocess
from pathlib import Path

import torch

from serve.kernels.products.short_vectors.kernels import ShortVariant
from serve.kernels.products.short_vectors.layout import ShortWeight
from tests.serve.kernels.products.streamed.cuda_on_cpu import HALVES
from tests.serve.kernels.products.vptq_on_cpu import BEGIN_OF_KERNEL, INSTRUCTIONS

MORE_INSTRUCTIONS = r"""
static void check8(size_t at) { if (at % 8 || at + 8 > block_here->bytes) abort(); }
static void stream4(u32& d, const u32* from, bool valid) { if (valid) d = *from; }
static void load_shared8(u32 at, u32& first, u32& second) {
    check8(at);
    memcpy(&first, block_here->memory + at, 4);
    memcpy(&second, block_here->memory + at + 4, 4);
}
static uint4 load_shared16(u32 at) {
    check(at);
    uint4 d;
    memcpy(&d, block_here->memory + at, 16);
    return d;
}
static void store_shared8(u32 to, u32 first, u32 second) {
    check8(to);
    memcpy(block_here->memory + to, &first, 4);
    memcpy(block_here->memory + to + 4, &second, 4);
}
static void prefetch(const void*) {}
static u32 __funnelshift_r(u32 low, u32 high, u32 shift) {
    return (u32)((low | (unsigned long long)high << 32) >> (shift & 31));
}
static u32 __byte_perm(u32 low, u32 high, u32 selector) { return bytes_of(low, high, selector); }
"""
LAUNCH = r"""
template <class Run> static void run(int blocks, int bytes, Run kernel) {
    for (int number = 0; number < blocks; ++number) {
        Block here;
        here.bytes = bytes;
        here.memory = (char*)aligned_alloc(128, (bytes + 127) / 128 * 128);
        memset(here.memory, 0xff, bytes);
        here.all.set(THREADS);
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
            kernel();
        });
        for (auto& thread : threads) thread.join();
        free(here.memory);
    }
}
"""
MULTIPLY = r"""
extern "C" void launch(const u16* x, const u32* codes, const uint4* books, const u16* scales,
                       const u16* biases, u16* y, int tokens, int stride, int columns, int rows0,
                       int rows1, int rows2, int blocks0, int blocks1, int share, int staged,
                       int out_stride, int blocks, int bytes) {
    x_begin = (const char*)x;
    x_end = (const char*)(x + (size_t)tokens * stride);
    run(blocks, bytes, [&] {
        vptq_short_vectors(x, codes, books, scales, biases, y, tokens, stride, columns, rows0,
                           rows1, rows2, blocks0, blocks1, share, staged, out_stride);
    });
}
"""
UNPACK = r"""
extern "C" void launch(const u32* codes, const uint4* book, const u16* scales, const u16* biases,
                       u16* out, int columns, int rows, int blocks, int bytes) {
    run(blocks, bytes,
        [&] { vptq_short_unpack(codes, book, scales, biases, out, columns, rows); });
}
"""


def compiled(kernel: str, dtype: str, launch: str, folder: Path) -> ctypes.CDLL:
    """A source as a library of the CPU. Raises CalledProcessError where g++ fails."""
    kernel = kernel[kernel.index(BEGIN_OF_KERNEL) :].replace(
        "extern __shared__ uint4 memory[];", "uint4* memory = (uint4*)block_here->memory;"
    )
    header = INSTRUCTIONS.replace("@HALVES@", HALVES[dtype].lstrip()) + MORE_INSTRUCTIONS
    source, library = folder / "kernel.cpp", folder / "kernel.so"
    source.write_text(header + kernel + LAUNCH + launch)
    options = ["-O1", "-std=c++17", "-w", "-fPIC", "-shared", "-pthread", "-o", str(library)]
    subprocess.run(["g++", str(source), *options], check=True)
    return ctypes.CDLL(str(library))


def product(
    variant: ShortVariant,
    x: torch.Tensor,
    weight: ShortWeight,
    blocks: list[int],
    share: int,
    staged: int,
    folder: Path,
) -> torch.Tensor:
    """[tokens, N] by the kernel, with so many blocks for each layer."""
    library = compiled(variant.source(), variant.dtype, MULTIPLY, folder)
    tokens, columns = x.shape
    rows = [*weight.rows, 0, 0][:3]
    # Of a merged layer, whose outputs lie between those of others.
    wider = torch.full((tokens, sum(rows) + 24), torch.nan, dtype=x.dtype)
    out = wider[:, 8 : 8 + sum(rows)]
    tensors = (x, weight.codes, weight.books, weight.scales, weight.biases, out)
    library.launch(
        *(ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors),
        *(tokens, x.stride(0), columns, *rows, *[*blocks, 0][:2], share, staged, out.stride(0)),
        *(sum(blocks), variant.shared_bytes(tokens, staged)),
    )
    assert int(wider.isnan().sum()) == 24 * tokens, "nothing else is written"
    return out


def unpacked(
    variant: ShortVariant, weight: ShortWeight, layer: int, columns: int, folder: Path
) -> torch.Tensor:
    """[N, K] of a layer by the kernel that unpacks."""
    library = compiled(variant.unpack_source(), variant.dtype, UNPACK, folder)
    rows, first = weight.rows[layer], sum(weight.tiles[:layer])
    out = torch.full((rows, columns), torch.nan, dtype=weight.books.dtype)
    of_layer = (weight.scales[layer], weight.biases[layer]) if weight.norm else (out, out)
    tensors = (weight.codes[first:], weight.books[layer], *of_layer, out)
    library.launch(
        *(ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors),
        *(columns, rows, 2, variant.book_bytes),
    )
    return out
