"""Packed integers to 16-bit or FP8 weights, as a Triton kernel."""

import torch
import triton
import triton.language as tl

from serve.kernels.products.graph_launch import launch_options, with_warps

BLOCK_ROWS, BLOCK_WORDS, WARPS = 8, 64, 4
# A small integer in the mantissa of 2**23 is that number plus the integer: conversions of integers
# are slow.
FLOAT_BITS = tl.constexpr(0x4B000000)


@triton.jit
def unpack_kernel(
    words_ptr, scales_ptr, zeros_ptr, out_ptr, rows, WORDS: tl.constexpr, GROUPS: tl.constexpr,
    BITS: tl.constexpr, ZEROS: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_WORDS: tl.constexpr,
):  # fmt: skip
    """out = (code - zero) * scale; without zeros, it is half of the range. A group has whole
    words."""
    in_word: tl.constexpr = 32 // BITS
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    word = tl.program_id(1) * BLOCK_WORDS + tl.arange(0, BLOCK_WORDS)
    inside = (row < rows)[:, None] & (word < WORDS)[None, :]
    at = row.to(tl.int64)[:, None] * WORDS + word[None, :]
    words = tl.load(words_ptr + at, mask=inside, other=0, eviction_policy="evict_first")
    group_at = row.to(tl.int64)[:, None] * GROUPS + (word // (WORDS // GROUPS))[None, :]
    scale = tl.load(scales_ptr + group_at, mask=inside, other=0.0).to(tl.float32)
    if ZEROS:
        zero = tl.load(zeros_ptr + group_at, mask=inside, other=0).to(tl.int32)
        offset = (zero | FLOAT_BITS).to(tl.float32, bitcast=True)
    else:
        offset = tl.full((BLOCK_ROWS, BLOCK_WORDS), 8388608.0 + (1 << (BITS - 1)), tl.float32)
    place = tl.arange(0, in_word)
    codes = (words[:, :, None] >> (place * BITS)[None, None, :]) & ((1 << BITS) - 1)
    values = (codes | FLOAT_BITS).to(tl.float32, bitcast=True) - offset[:, :, None]
    values = values * scale[:, :, None]
    out_at = out_ptr + at[:, :, None] * in_word + place[None, None, :]
    tl.store(out_at, values.to(out_ptr.dtype.element_ty), mask=inside[:, :, None])


def unpacked(
    words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, out: torch.Tensor
) -> torch.Tensor:
    """Fills `out` [rows, K] with the weights of packed words [rows, K * bits / 32]."""
    grid, tensors, constants = _launch(words, scales, zeros, out)
    unpack_kernel[grid](**tensors, out_ptr=out, **constants, num_warps=WARPS)
    return out


def unpacked_in_graph(
    words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, out: torch.Tensor
) -> torch.Tensor:
    """The same, where a graph is traced."""
    from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_functional

    grid, tensors, constants = _launch(words, scales, zeros, out)
    kernel = with_warps(unpack_kernel, WARPS)
    options = launch_options(kernel, (*grid, 1), tensors, {"out_ptr": out}, constants)
    filled: torch.Tensor = triton_kernel_wrapper_functional(**options)["out_ptr"]
    return filled


def _launch(
    words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, out: torch.Tensor
) -> tuple[tuple[int, int], dict[str, torch.Tensor], dict[str, int | bool]]:
    """Programs, inputs and numbers of the kernel."""
    rows, count = words.shape
    tensors = {
        "words_ptr": words, "scales_ptr": scales, "zeros_ptr": words if zeros is None else zeros
    }  # fmt: skip
    constants = {
        "rows": rows, "WORDS": count, "GROUPS": scales.shape[1],
        "BITS": 32 * count // out.shape[1], "ZEROS": zeros is not None,
        "BLOCK_ROWS": BLOCK_ROWS, "BLOCK_WORDS": BLOCK_WORDS,
    }  # fmt: skip
    grid = (triton.cdiv(rows, BLOCK_ROWS), triton.cdiv(count, BLOCK_WORDS))
    return grid, tensors, constants
