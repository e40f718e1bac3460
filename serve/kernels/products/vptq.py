"""Products of few tokens with vector-quantized weights (VPTQ): look-ups and tensor cores."""

import math
from dataclasses import replace
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
FEWEST_WARPS = 4
MOST_DIRECT = 1 << 22
"""Weights of a layer up to which gathering from L2 may pay: a multiprocessor has few look-ups for
each entry of a codebook."""
SMALL = 1 << 23
"""Weights of a layer up to which room for the next kernel's block is worth fewer copies of the
residual codebook."""
FEWER_COPIES = 4
BLOCK_RESERVED = 1024
"""Bytes of shared memory that the GPU takes for each block; a multiprocessor has those of one block
more than a block may use."""
BARRIER, SHARES = 4, 3
"""A barrier and the sum after it, in blocks of columns of a warp; candidates for each size."""
TYPES = {torch.bfloat16: "bf16", torch.float16: "f16"}


@cache
def kernel_of(variant: Variant, device: int) -> Kernel:
    """A kernel is loaded for one GPU."""
    kernel = Kernel(variant.source(), NAME)
    if SHARED in (variant.main, variant.residual):
        kernel.prefer_shared_memory()
    return kernel


@cache
def limits_of(device: int) -> tuple[int, int]:
    """Shared memory of a block, and multiprocessors."""
    facts = torch.cuda.get_device_properties(device)
    return int(facts.shared_memory_per_block_optin), int(facts.multi_processor_count)


@cache
def can_overlap(device: int) -> bool:
    """Whether a kernel may begin before the one in front of it has ended."""
    return bool(torch.cuda.get_device_capability(device) >= (9, 0))


def variant_of(
    part: Part, tokens: int, warps: int, direct: bool, most_bytes: int, dtype: torch.dtype
) -> Variant:
    """The kernel for a part. Codebooks that do not fit in shared memory are gathered from L2, the
    larger one first. There are fewer warps where so many do not fit."""
    residuals = int(part.residual.shape[0])
    wanted = Variant(
        warps=warps, tokens=next(room for room in (1, 8, 16) if tokens <= room),
        tail=part.tail_bytes, vector=part.vector, main=DIRECT if direct else SHARED,
        residual=SHARED if residuals else NONE, copies=RESIDUAL_COPIES[0],
        norm=bool(part.scales.numel()), dtype=TYPES[dtype], swaps=bool(part.swaps.numel()),
    )  # fmt: skip
    small = part.low.numel() * part.vector <= SMALL
    return fitting(wanted, int(part.main.shape[0]), residuals, most_bytes, small)


@cache
def fitting(wanted: Variant, mains: int, residuals: int, most_bytes: int, small: bool) -> Variant:
    """What is nearest to the variant and fits. A small layer has fewer copies of the residual
    codebook where a multiprocessor then has room for two blocks."""
    copies = RESIDUAL_COPIES if wanted.residual == SHARED else (1,)
    places = [(main, wanted.residual, c) for main in (wanted.main, DIRECT) for c in copies]
    if wanted.residual == SHARED:
        places.append((DIRECT, DIRECT, 1))
    for main, residual, count in places:
        variant = replace(wanted, main=main, residual=residual, copies=count)
        variant = with_resident(variant, mains, residuals, most_bytes, small)
        if variant.shared_bytes(mains, residuals) > most_bytes:
            continue
        fewer = replace(variant, copies=min(variant.copies, FEWER_COPIES))
        fewer = with_resident(fewer, mains, residuals, most_bytes, small)
        return fewer if small and fewer.resident > variant.resident else variant
    if wanted.warps > FEWEST_WARPS:
        return fitting(
            replace(wanted, warps=wanted.warps // 2), mains, residuals, most_bytes, small
        )
    raise Unusable(f"{wanted.warps} warps need more than {most_bytes} bytes of shared memory")


def with_resident(
    variant: Variant, mains: int, residuals: int, most_bytes: int, small: bool
) -> Variant:
    """With the blocks that a multiprocessor has room for. Two blocks of 16 warps have 64 registers
    for each thread: enough for one token, but slower, which pays for small layers."""
    needed = 2 * (variant.shared_bytes(mains, residuals) + BLOCK_RESERVED)
    room = needed <= most_bytes + BLOCK_RESERVED
    most_warps = 16 if small and variant.tokens == 1 else 8
    return replace(variant, resident=2 if room and variant.warps <= most_warps else 1)


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
        places = [(0, warps) for warps in (16, 8)]
        if rows * columns <= MOST_DIRECT:
            places += [(1, warps) for warps in (16, 8)]
        return [
            options_of(DIRECT=direct, PDL=pdl, SHARE=share, WARPS=warps)
            for direct, warps in places
            for place, share in enumerate(best_shares(vectors, blocks, warps))
            for pdl in ((1,) if direct or place else (1, 0))
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
    variant = variant_of(part, tokens, chosen["WARPS"], bool(chosen["DIRECT"]), most_bytes, x.dtype)
    warps = variant.warps
    share = share_of(warps, blocks, chosen["SHARE"])
    mains, residuals = int(part.main.shape[0]), int(part.residual.shape[0])
    shared_bytes = variant.shared_bytes(mains, residuals)
    grid = min(-(-rows * share // warps), processors * variant.grid_blocks)
    kernel_of(variant, device).launch(
        grid, warps * 32, shared_bytes,
        (x, part.main, part.residual, part.low, part.tail, part.scales, part.biases, out),
        (tokens, x.stride(0), columns, rows, mains, residuals, part.main_bits, share,
         out.stride(0)),
        overlaps=bool(chosen["PDL"]) and can_overlap(device),
    )  # fmt: skip
