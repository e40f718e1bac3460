"""Multiplies a product by the scales of its tokens and rows, as a Triton kernel."""

import torch
import triton
import triton.language as tl


@triton.jit
def scale_kernel(
    sums_ptr, x_scale_ptr, w_scale_ptr, out_ptr, N, TOKEN_SCALES: tl.constexpr,
    ROW_SCALES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_row = row < N
    total = tl.load(sums_ptr + token * N + row, mask=is_row, other=0.0).to(tl.float32)
    if ROW_SCALES:
        total = total * tl.load(w_scale_ptr + row, mask=is_row, other=0.0)
    if TOKEN_SCALES:
        total = total * tl.load(x_scale_ptr + token)
    tl.store(out_ptr + token * N + row, total.to(out_ptr.dtype.element_ty), mask=is_row)


def scaled(
    sums: torch.Tensor,
    token_scales: torch.Tensor | None,
    row_scales: torch.Tensor | None,
    tokens: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """The first `tokens` rows of `sums`, times scales."""
    columns = sums.shape[1]
    out = torch.empty((tokens, columns), dtype=dtype, device=sums.device)
    block = 2048
    scale_kernel[(tokens, triton.cdiv(columns, block))](
        sums, sums if token_scales is None else token_scales,
        sums if row_scales is None else row_scales, out, columns,
        token_scales is not None, row_scales is not None, block, num_warps=4,
    )  # fmt: skip
    return out
