"""The kernel of `cuda_kernels/streamed_dense.py`, lane by lane: the same index arithmetic, bit
operations and instructions, as the CUDA manual defines them."""

import torch

from serve.kernels.products.cuda_kernels.streamed_dense import Variant
from serve.kernels.products.cuda_kernels.streaming import STEP
from tests.serve.kernels.products.emulated_vptq import GROUP, QUAD, multiplied
from tests.serve.kernels.products.streamed.emulated_sparse import widened

BANKS, BANK_BYTES = 32, 4


def fragment(codes: torch.Tensor, first: int, column: int, word: int, v: Variant) -> torch.Tensor:
    """A of the product of one word, [4, lane, half], from bytes [N, K]; `first` is the tile's first
    row and `column` that of the 64 columns."""
    registers = [torch.zeros(0)] * 4
    at = (column + 16 * QUAD + 4 * word)[:, None] + torch.arange(4)
    for below in range(2):
        row = (first + GROUP + 8 * below).clamp(max=codes.shape[0] - 1)
        is_there = at < codes.shape[1]
        loaded = torch.where(is_there, codes[row[:, None], at.clamp(max=codes.shape[1] - 1)], 0)
        swapped = loaded[:, [0, 2, 1, 3]]
        words = (swapped << torch.arange(0, 32, 8)).sum(-1)
        registers[below], registers[2 + below] = widened(words, v.is_float, v.dtype)
    return torch.stack([register.float() for register in registers])


def addresses(v: Variant, tokens: int, slots: int, word: int, narrow: int) -> torch.Tensor:
    """Where lanes read activations for the words `word` and `word` + 1, in bytes."""
    x_bytes = slots * v.warps * STEP * 2 + v.padding
    return (GROUP + 8 * narrow).clamp(max=tokens - 1) * x_bytes + QUAD * 32 + word * 8


def wavefronts(at: torch.Tensor) -> int:
    """Most turns in which eight lanes read their 16 bytes each from shared memory."""
    turns = 0
    for lanes in at.view(4, 8):
        words = {int(one) // BANK_BYTES + i for one in lanes for i in range(4)}
        banks = [word % BANKS for word in words]
        turns = max(turns, *(banks.count(bank) for bank in banks))
    return turns


def product(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, v: Variant) -> torch.Tensor:
    """[tokens, N] in float32; warps and blocks share steps, whose sums are only added."""
    (tokens, columns), rows = x.shape, codes.shape[0]
    steps = -(-columns // STEP)
    patterns = codes.view(torch.uint8).long()
    slots = v.slots(steps)
    width = slots * v.warps * STEP + v.padding // 2
    result = torch.zeros(16 * v.narrows, -(-rows // 16) * 16)
    for step in range(steps):
        memory = torch.zeros(tokens, width)
        memory[:, : min(STEP, columns - step * STEP)] = x[:, step * STEP :][:, :STEP].float()
        flat = memory.flatten()
        for first in range(0, rows, 16):
            for m in range(8):
                side, word = divmod(m, 4)
                a = fragment(patterns, first, step * STEP + side * 64, word, v)
                for n in range(v.narrows):
                    at = addresses(v, tokens, slots, word - word % 2, n) // 2 + side * 64
                    at = at + word % 2 * 4
                    b = torch.stack([flat[at[:, None] + 2 * i + torch.arange(2)] for i in (0, 1)])
                    sums = multiplied(a, b)
                    for i in range(4):
                        token, row = 8 * n + 2 * QUAD + (i & 1), first + GROUP + 8 * (i >> 1)
                        result[token, row] += sums[i]
    return result[:tokens, :rows] * scales.flatten()
