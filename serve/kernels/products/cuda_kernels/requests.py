"""Requests the weights of the next kernel into the L2 cache, as parts of a kernel's source.

A block requests its part when the last of its own weights are on their way, so that these come
first. Nothing waits for the requests: they go on while the block joins its sums, and while the
kernels in front of the next product run. `products/upcoming.py` says which bytes they are.
"""

INSTRUCTION = r"""
__device__ __forceinline__ void request(const char* from, int bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(from), "r"(bytes));
}
"""
FUNCTION = r"""
// Blocks take pieces in turns, and so do the warps of a block.
__device__ __forceinline__ void request_next(const char* next, int count, int bytes, int pitch) {
    const int place = (threadIdx.x & 31) * WARPS + (threadIdx.x >> 5);
    for (int i = blockIdx.x + place * gridDim.x; i < count; i += THREADS * gridDim.x)
        request(next + (size_t)i * pitch, bytes);
}
"""
PARTS = {
    "REQUESTS": INSTRUCTION + FUNCTION,
    "NEXT": " const char* next,",
    "PIECES": ", int next_count, int next_bytes, int next_pitch",
    "REQUEST": r"""
            // The last weights of this warp are on their way.
            if (first + PREFETCH >= slots && part + turns >= parts)
                request_next(next, next_count, next_bytes, next_pitch);""",
}
"""What `@NAME@` in a source become; nothing where a kernel requests nothing."""


def with_requests(source: str, requests: bool) -> str:
    """A source with these parts, or without them."""
    for name, text in PARTS.items():
        source = source.replace(f"@{name}@", text if requests else "")
    return source
