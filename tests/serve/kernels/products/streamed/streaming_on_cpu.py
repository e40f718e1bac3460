"""Runs the sources of `cuda_kernels/streamed_dense.py` and `streamed_packed.py` on a CPU."""

import ctypes
import re
from pathlib import Path

import torch

from serve.kernels.products.cuda_kernels import streamed_dense, streamed_packed
from serve.kernels.products.cuda_kernels.instructions import INSTRUCTIONS
from serve.kernels.products.streamed.cutting import steps_of
from serve.kernels.products.streamed.packed_layout import Packed
from tests.serve.kernels.products.streamed.cuda_on_cpu import BEGIN_OF_KERNEL, compiled, pointers

ON_CPU = r"""
#include <math.h>
static const void* end_of_codes;
static void __syncwarp() { warp_here->barrier.wait(); }
static u32 __byte_perm(u32 low, u32 high, u32 selector) {
    const unsigned long long bytes = low | (unsigned long long)high << 32;
    u32 d = 0;
    for (int i = 0; i < 4; ++i) d |= (u32)(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return d;
}
static float __uint_as_float(u32 bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static u32 masked_not(u32 value, u32 mask, u32 bits) { return (~value & mask) | bits; }
static void stream16(uint4& d, const uint4* from, bool valid) {
    if (valid && from + 1 > end_of_codes) abort();
    if (valid) d = *from;
}
static void load16(u32* d, const void* from, bool valid) { if (valid) memcpy(d, from, 16); }
static void load8(u32* d, const void* from, bool valid) { if (valid) memcpy(d, from, 8); }
static void load4(u32* d, const void* from, bool valid) { if (valid) memcpy(d, from, 4); }
static void copy16(u32 to, const void* from) { copy16(to, from, 16); }
static void clear16(u32 to) { copy({to, nullptr, 0}); }
static void store(u32 to, float value) {
    if (to % 4 || to + 4 > block->bytes) abort();
    memcpy(block->memory + to, &value, 4);
}
static uint4 shared16(u32 at) {
    uint4 d;
    check(at);
    memcpy(&d, block->memory + at, 16);
    return d;
}
static void multiply(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    memcpy(warp_here->a[lane_here], a, 16);
    warp_here->b[lane_here][0] = b0;
    warp_here->b[lane_here][1] = b1;
    warp_here->barrier.wait();
    for (int i = 0; i < 4; ++i) {
        const int row = lane_here / 4 + i / 2 * 8, column = lane_here % 4 * 2 + i % 2;
        for (int k = 0; k < 16; ++k) {
            const u32 left = warp_here->a[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2];
            const u32 right = warp_here->b[column * 4 + k % 8 / 2][k / 8];
            sums[i] += wide(left >> k % 2 * 16) * wide(right >> k % 2 * 16);
        }
    }
    warp_here->barrier.wait();
}
static void barrier() { cluster->barrier.wait(); }
static float sum_of(u32 at, u32 rank) {
    float value;
    if (at % 4 || at + 4 > block->bytes) abort();
    memcpy(&value, cluster->blocks[rank].memory + at, 4);
    return value;
}
"""
CONVERSION = r'asm\("cvt\.f32\.f16[^;]*;" : "=f"\(d\) : "h"\(\(u16\)\((.*)\)\)\);'
DENSE = (
    "const u16* x, const uint4* codes, const float* scales, u16* y, int tokens, int stride, "
    "int columns, int rows, int steps"
)
PACKED = (
    "const u16* x, const uint4* codes, const u32* words, const float* scales, u16* y, int tokens, "
    "int stride, int columns, int rows, int tiles, int steps"
)


def _compiled(
    variant: streamed_dense.Variant | streamed_packed.Variant, parameters: str, folder: Path
) -> ctypes.CDLL:
    instructions = INSTRUCTIONS.replace("@TYPE@", variant.dtype)
    source = variant.source()
    assert instructions in source
    kernel = source[source.index(BEGIN_OF_KERNEL) :].replace(instructions, "")
    kernel = re.sub(CONVERSION, r"d = wide(\1);", kernel)
    name = "streamed_packed" if parameters == PACKED else "streamed_dense"
    codes = "tiles * steps * LOADS * 32" if parameters == PACKED else "rows * columns / 16"
    arguments = ", ".join(one.split()[-1] for one in parameters.split(","))
    call = f"end_of_codes = codes + {codes}, {name}({arguments})"
    return compiled(ON_CPU + kernel, variant.dtype, parameters, call, folder)


def dense_product(
    variant: streamed_dense.Variant,
    x: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    clusters: int,
    folder: Path,
) -> list[torch.Tensor]:
    """[tokens, N] by the kernel, with copies that arrive late, and with those that are at once."""
    library, (rows, columns), tokens = _compiled(variant, DENSE, folder), codes.shape, x.shape[0]
    steps, results = steps_of(columns), []
    for at_once in (False, True):
        out = torch.full((tokens, rows), torch.nan, dtype=x.dtype)
        library.launch(
            *pointers(x, codes, scales, out), tokens, x.stride(0), columns, rows, steps, clusters,
            variant.shared_bytes(tokens, steps), at_once,
        )  # fmt: skip
        results.append(out)
    return results


def packed_product(
    variant: streamed_packed.Variant, x: torch.Tensor, weight: Packed, clusters: int, folder: Path
) -> list[torch.Tensor]:
    """The same for packed integers."""
    library, (tokens, columns) = _compiled(variant, PACKED, folder), x.shape
    (tiles, steps), results = weight.codes.shape[:2], []
    for at_once in (False, True):
        out = torch.full((tokens, weight.rows), torch.nan, dtype=x.dtype)
        library.launch(
            *pointers(x, weight.codes, weight.groups, weight.row_scales, out), tokens, x.stride(0),
            columns, weight.rows, tiles, steps, clusters, variant.shared_bytes(tokens, steps),
            at_once,
        )  # fmt: skip
        results.append(out)
    return results
