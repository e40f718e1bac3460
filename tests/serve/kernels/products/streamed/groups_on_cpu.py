"""Runs the source of `warpgroup/source.py` on a CPU.

Barriers count arrivals and bytes as the PTX manual says. Bulk copies happen either at once or when
their barrier is waited for. Products of a group read shared memory through their descriptor.
"""

import ctypes
import re
from pathlib import Path

import torch

from serve.kernels.products.cuda_kernels.instructions import INSTRUCTIONS
from serve.kernels.products.cuda_kernels.warpgroup import instructions as warpgroup
from serve.kernels.products.cuda_kernels.warpgroup.variant import Variant
from serve.kernels.products.streamed.packed_layout import Packed
from tests.serve.kernels.products.streamed.cuda_on_cpu import BEGIN_OF_KERNEL, compiled, pointers
from tests.serve.kernels.products.streamed.streaming_on_cpu import CONVERSION, ON_CPU

GROUP_ON_CPU = r"""
#include <condition_variable>
#include <map>
#include <mutex>
#define CLUSTER_BLOCKS (SPLIT * TEAM)
struct uint2 { u32 x, y; };
struct float4 { float x, y, z, w; };
static uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
struct Counter { int arrivals, missing, bytes, passed; std::vector<Copy> copies; };
static std::mutex counters_lock;
static std::condition_variable counters_changed;
static std::map<std::pair<Block*, u32>, Counter> counters;
static const char *first_code, *last_code, *first_scale, *last_scale;

static Counter& counter(u32 at, Block* of = nullptr) {
    const std::pair<Block*, u32> key = {of ? of : block, at};
    if (at % 8 || !counters.count(key)) abort();
    return counters[key];
}
static void check_passed(Counter& one) {
    if (one.missing < 0) abort();
    if (one.missing || one.bytes) return;
    one.missing = one.arrivals;
    ++one.passed;
    counters_changed.notify_all();
}
static void do_copies(Counter& one) {
    for (auto& copy : one.copies) {
        memcpy(block->memory + copy.to, copy.from, copy.bytes);
        one.bytes -= copy.bytes;
    }
    if (one.copies.empty()) return;
    one.copies.clear();
    check_passed(one);
}
static void set_barrier(u32 at, int arrivals) {
    std::lock_guard<std::mutex> held(counters_lock);
    counters[{block, at}] = {arrivals, arrivals, 0, 0, {}};
}
static void show_barriers() {}
static void show_activations() {}
static void expect(u32 at, int bytes) {
    std::lock_guard<std::mutex> held(counters_lock);
    Counter& one = counter(at);
    one.bytes += bytes;
    --one.missing;
    check_passed(one);
}
static void arrive(u32 at) { expect(at, 0); }
static void arrive_at_block(u32 rank, u32 at) {
    std::lock_guard<std::mutex> held(counters_lock);
    Counter& one = counter(at, &cluster->blocks[rank]);
    --one.missing;
    check_passed(one);
}
// At once: the other block may not have said yet how many bytes it expects.
static void copy_to_block(u32 rank, u32 at, int bytes, u32 barrier_at) {
    std::lock_guard<std::mutex> held(counters_lock);
    Block& other = cluster->blocks[rank];
    if (at % 16 || bytes % 16 || at + bytes > block->bytes) abort();
    memcpy(other.memory + at, block->memory + at, bytes);
    Counter& one = counter(barrier_at, &other);
    one.bytes -= bytes;
    check_passed(one);
}
static void wait_for_blocks() {
    if (TEAM > 1) cluster->barrier.wait();
    else __syncthreads();
}
static void wait(u32 at, int uses) {
    std::unique_lock<std::mutex> held(counters_lock);
    Counter& one = counter(at);
    do_copies(one);
    while (one.passed % 2 == uses % 2) {
        if (one.passed != uses) abort();  // a whole turn behind
        counters_changed.wait(held);
        do_copies(one);
    }
    if (one.passed != uses + 1) abort();
}
static void bulk_copy(u32 to, const void* from, int bytes, u32 barrier_at) {
    const char *first = (const char*)from, *last = first + bytes;
    const bool is_code = first >= first_code && last <= last_code;
    const bool is_scale = first >= first_scale && last <= last_scale;
    if (to % 16 || bytes % 16 || to + bytes > block->bytes || !(is_code || is_scale)) abort();
    std::lock_guard<std::mutex> held(counters_lock);
    memset(block->memory + to, 0xff, bytes);
    Counter& one = counter(barrier_at);
    one.copies.push_back({to, from, bytes});
    if (at_once) do_copies(one);
}
static void store4(u32 to, u32 word) {
    if (to % 4 || to + 4 > block->bytes) abort();
    memcpy(block->memory + to, &word, 4);
}
static u32 shared4(u32 at) {
    u32 d;
    if (at % 4 || at + 4 > block->bytes) abort();
    memcpy(&d, block->memory + at, 4);
    return d;
}
static float4 sums_of(u32 at, u32 rank) {
    float4 d;
    check(at);
    memcpy(&d, (SPLIT == 1 ? block : &cluster->blocks[rank])->memory + at, 16);
    return d;
}
template <int COUNT> static void keep_registers() {}
template <int COUNT> static void take_registers() {}
static void begin_products() {}
static void end_products() {}
static void wait_for_round_before() {}
static void wait_for_products(float (&)[WIDTH / 2]) {}
static float wide8(u32 bits) {  // e4m3
    const int exponent = bits >> 3 & 15;
    const float size = exponent ? ldexpf(8 + (bits & 7), exponent - 10) : ldexpf(bits & 7, -9);
    return bits & 128 ? -size : size;
}
template <bool ADDS>
static void multiply_group(float (&sums)[WIDTH / 2], const u32 (&a)[4], u32 tokens) {
    memcpy(warp_here->a[lane_here], a, 16);
    warp_here->barrier.wait();
    const u32 at = (tokens & 0x3fff) << 4, next_columns = (tokens >> 16 & 0x3fff) << 4;
    for (int i = 0; i < WIDTH / 2; ++i) {
        const int row = lane_here / 4 + (i >> 1 & 1) * 8;
        const int token = i / 4 * 8 + lane_here % 4 * 2 + i % 2;
        if (!ADDS) sums[i] = 0;
        for (int k = 0; k < 32 / X_BYTES; ++k) {
            const int half = k * X_BYTES / 16, byte = k * X_BYTES % 16;
            const u32 left = warp_here->a[row % 8 * 4 + byte / 4][half * 2 + row / 8];
            const u32 from = at + half * next_columns + token / 8 * 128 + token % 8 * 16 + byte;
            if (from + X_BYTES > block->bytes) abort();
            u32 right = 0;
            memcpy(&right, block->memory + from, X_BYTES);
            const u32 bits = left >> byte % 4 * 8;
            sums[i] += X_BYTES == 1 ? wide8(bits & 0xff) * wide8(right) : wide(bits) * wide(right);
        }
    }
    warp_here->barrier.wait();
}
"""
PARAMETERS = (
    "const unsigned char* x, const uint4* codes, const u32* words, const float* scales, u16* y, "
    "int tokens, int stride, int rows, int tiles, int steps, int has_scales"
)
ENDS = (
    "first_code = (const char*)codes, last_code = first_code + (size_t)tiles * steps * CODE_BYTES, "
    "first_scale = (const char*)words, "
    "last_scale = first_scale + (size_t)tiles * steps * SCALE_BYTES"
)


def products(
    variant: Variant,
    x: torch.Tensor,
    scales: torch.Tensor | None,
    weight: Packed,
    clusters: int,
    folder: Path,
) -> list[torch.Tensor]:
    """[tokens, N] by the kernel, with copies that arrive late, and with those that are at once."""
    source, width, numbers = variant.source(), variant.tokens // variant.pieces, variant.numbers
    kernel = source[source.index(BEGIN_OF_KERNEL) :]
    begin = kernel.index(INSTRUCTIONS.replace("@TYPE@", numbers.out))
    constants, kernel = kernel[:begin], kernel[begin:]
    for replaced in (
        INSTRUCTIONS.replace("@TYPE@", numbers.out),
        warpgroup.instructions(width, numbers.x),
    ):
        assert replaced in kernel
        kernel = kernel.replace(replaced, "")
    kernel = re.sub(CONVERSION, r"d = wide(\1);", kernel)
    arguments = ", ".join(one.split()[-1] for one in PARAMETERS.split(","))
    library = compiled(
        constants + ON_CPU + GROUP_ON_CPU + kernel, numbers.out, PARAMETERS,
        f"{ENDS}, streamed_batch({arguments})", folder,
    )  # fmt: skip
    return [
        _product(library, variant, x, scales, weight, clusters, at_once)
        for at_once in (False, True)
    ]


def _product(
    library: ctypes.CDLL,
    variant: Variant,
    x: torch.Tensor,
    scales: torch.Tensor | None,
    weight: Packed,
    clusters: int,
    at_once: bool,
) -> torch.Tensor:
    tokens, (tiles, steps) = x.shape[0], weight.codes.shape[:2]
    dtype = torch.bfloat16 if variant.numbers.out == "bf16" else torch.float16
    out = torch.full((tokens, weight.rows), torch.nan, dtype=dtype)
    given = weight.row_scales if scales is None else scales
    library.launch(
        *pointers(x, weight.codes, weight.groups, given, out), tokens,
        x.stride(0) * x.element_size(), weight.rows, tiles, steps, int(scales is not None),
        clusters, variant.shared_bytes(tokens, steps), at_once,
    )  # fmt: skip
    return out
