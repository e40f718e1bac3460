"""Products of few tokens with vector-quantized weights (VPTQ): look-ups and tensor cores."""

import math
from functools import cache

import torch

from serve.kernels.products.cuda_kernels.compiled import Kernel
from serve.kernels.products.cuda_kernels.vptq import DIRECT, NAME, NONE, SHARED, STEP, Variant
from serve.kernels.products.launch import options_of
from serve.kernels.products.product import Options, Unusable, Weight
from serve.kernels.products.vptq_prepared import (
    RESIDUAL_COPIES,
    Part,
    VectorProduct,
    parts_of,
    prepared,
)

PROCESSORS = 132
"""Of an H100 or H200; for guesses only."""
LONGEST_VECTOR = 8
MOST_TOKENS = 16
"""Of one launch."""
MOST_DIRECT = 1 << 26
BARRIER, SHARES = 4, 3
"""A barrier and the sum after it, in blocks of columns of a warp; candidates for each size."""
TYPES = {torch.bfloat16: "bf16", torch.float16: "f16"}


@cache
def kernel_of(variant: Variant, device: int) -> Kernel:
    """A kernel is loaded for one GPU."""
    return Kernel(variant.source(), NAME)


@cache
def limits_of(device: int) -> tuple[int, int]:
    """Shared memory of a block, and multiprocessors."""
    facts = torch.cuda.get_device_properties(device)
    return int(facts.shared_memory_per_block_optin), int(facts.multi_processor_count)


def variant_of(
    part: Part, tokens: int, warps: int, direct: bool, most_bytes: int, dtype: torch.dtype
) -> Variant:
    """The kernel for a part. Codebooks that do not fit in shared memory are gathered from L2, the
    larger one first."""
    mains, residuals = int(part.main.shape[0]), int(part.residual.shape[0])
    places = [(DIRECT if direct else SHARED, SHARED), (DIRECT, SHARED), (DIRECT, DIRECT)]
    for main, residual in places:
        for copies in RESIDUAL_COPIES if residual == SHARED else (1,):
            variant = Variant(
                warps=warps, tokens=next(room for room in (1, 8, 16) if tokens <= room),
                tail=part.tail_bytes, vector=part.vector, main=main,
                residual=residual if residuals else NONE, copies=copies,
                norm=bool(part.scales.numel()), dtype=TYPES[dtype],
            )  # fmt: skip
            if variant.shared_bytes(mains, residuals) <= most_bytes:
                return variant
    raise Unusable(f"{warps} warps need more than {most_bytes} bytes of shared memory")


def share_of(warps: int, blocks: int, at_most: int) -> int:
    """Warps that take one row of vectors together: a power of two, at most one for each block of
    columns."""
    share = 1
    while share * 2 <= min(warps, blocks, at_most):
        share *= 2
    return share


def best_shares(vectors: int, blocks: int, warps: int) -> list[int]:
    """How many warps may take a row of vectors together, the least work of the slowest
    multiprocessor first. A few of them: a barrier's cost is known only roughly."""

    def work(share: int) -> int:
        rounds = math.ceil(vectors / (PROCESSORS * (warps // share)))
        return rounds * (math.ceil(blocks / share) * warps + BARRIER)

    shares = [1 << power for power in range(6) if 1 << power <= min(warps, blocks)]
    return sorted(shares, key=work)[:SHARES]


class VptqFewTokens(VectorProduct):
    """1 to 16 tokens: codebooks in shared memory, tensor cores."""

    name = "vptq_few_tokens"
    most = MOST_TOKENS

    def options(self, rows: int, columns: int, tokens: int) -> list[Options]:
        vectors, blocks = -(-rows // LONGEST_VECTOR), -(-columns // STEP)
        # Codebooks in L2 pay only where a layer has few look-ups for each multiprocessor. The
        # staging of 32 warps would not fit beside a residual codebook.
        places = [(0, warps) for warps in (16, 32, 8)]
        if rows * columns <= MOST_DIRECT:
            places += [(1, warps) for warps in (16, 8)]
        return [
            options_of(DIRECT=direct, SHARE=share, WARPS=warps)
            for direct, warps in places
            for share in best_shares(vectors, blocks, warps)
        ]

    def prepare(self, weight: Weight) -> list[torch.Tensor]:
        device = weight.codes.device
        if device.type != "cuda":
            raise Unusable("needs an NVIDIA GPU")
        if torch.cuda.get_device_capability(device) < (8, 0):
            raise Unusable("needs a GPU of compute capability 8.0 or higher")
        most_bytes = limits_of(device.index or 0)[0]
        tensors = prepared(weight, most_bytes)
        for part in parts_of(tensors):
            variant_of(part, MOST_TOKENS, 8, False, most_bytes, part.main.dtype)  # raises if none
        return tensors

    def write(
        self, x: torch.Tensor, tensors: list[torch.Tensor], options: Options, out: torch.Tensor
    ) -> None:
        parts = parts_of(tensors)
        dtype = parts[0].main.dtype
        if x.dtype != dtype:
            result = torch.empty_like(out, dtype=dtype)
            self.write(x.to(dtype), tensors, options, result)
            out.copy_(result)
            return
        if x.stride(1) != 1 or x.stride(0) % 8 or x.data_ptr() % 16:
            x = x.contiguous()  # the kernel reads 16 bytes at once
        if len(parts) == 1:
            few_tokens(x, parts[0], options, out)
            return
        outliers = int(parts[1].scales.shape[0])
        few_tokens(x[:, outliers:], parts[0], options, out)
        of_outliers = torch.empty_like(out, memory_format=torch.contiguous_format)
        few_tokens(x[:, :outliers], parts[1], options, of_outliers)
        out.add_(of_outliers)


class VptqChunks(VptqFewTokens):
    """Some more tokens, 16 at a time: faster than unpacking until that pays."""

    name = "vptq_chunks"
    fewest, most = MOST_TOKENS + 1, 128

    def write(
        self, x: torch.Tensor, tensors: list[torch.Tensor], options: Options, out: torch.Tensor
    ) -> None:
        for first in range(0, x.shape[0], MOST_TOKENS):
            here = slice(first, first + MOST_TOKENS)
            super().write(x[here], tensors, options, out[here])


def few_tokens(x: torch.Tensor, part: Part, options: Options, out: torch.Tensor) -> None:
    """Writes [tokens, N] for one part."""
    chosen, device = dict(options), x.device.index or 0
    most_bytes, processors = limits_of(device)
    tokens, columns = x.shape
    rows, blocks = int(part.low.shape[0]), int(part.low.shape[1])
    warps = chosen["WARPS"]
    variant = variant_of(part, tokens, warps, bool(chosen["DIRECT"]), most_bytes, x.dtype)
    share = share_of(warps, blocks, chosen["SHARE"])
    mains, residuals = int(part.main.shape[0]), int(part.residual.shape[0])
    shared_bytes = variant.shared_bytes(mains, residuals)
    grid = min(-(-rows * share // warps), processors * variant.resident)
    kernel_of(variant, device).launch(
        grid, warps * 32, shared_bytes,
        (x, part.main, part.residual, part.low, part.tail, part.scales, part.biases, out),
        (tokens, x.stride(0), columns, rows, mains, residuals, part.main_bits, share,
         out.stride(0)),
    )  # fmt: skip
