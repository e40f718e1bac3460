"""The walk through a block of columns as a Triton kernel: rows are independent, and all that a row
needs stays in registers."""

import torch
import triton
import triton.language as tl

from conf.schema.ranges import MASK_WIDTH
from quantize.calibrate.solver.block import TINY, Block, Pruning
from quantize.calibrate.solver.grid import Codes, Grid

WIDEST_BLOCK = 128
ROWS_PER_PROGRAM = 8
STORED_AS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
NO_GRID = -1
SMALLEST_SCALE = tl.constexpr(TINY)
# Adding and subtracting 1.5 * 2**23 rounds a float32 to the nearest integer, halves to even.
ROUNDS_TO_INTEGER = tl.constexpr(12582912.0)


@triton.jit
def _column(tile, is_column):
    return tl.sum(tl.where(is_column, tile, 0.0), axis=1)


@triton.jit
def _nearest_fp4(codes):
    size = tl.abs(codes)
    # Steps of 0.5 up to 2, of 1 up to 4, then 6; a value in the middle goes to the even code.
    small = ((size * 2.0 + ROUNDS_TO_INTEGER) - ROUNDS_TO_INTEGER) * 0.5
    middle = (size + ROUNDS_TO_INTEGER) - ROUNDS_TO_INTEGER
    large = tl.where(size <= 5.0, 4.0, 6.0)
    nearest = tl.where(size < 1.75, small, tl.where(size < 3.5, middle, large))
    return tl.where(codes < 0.0, -nearest, nearest)


@triton.jit
def _nearest_fp8(codes):
    """E4M3 by arithmetic: older GPUs have no instruction for it."""
    size = tl.abs(codes)
    bits = size.to(tl.int32, bitcast=True)
    # Three bits of the mantissa stay; halves go to the even one.
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000).to(tl.float32, bitcast=True)
    subnormal = ((size * 512.0 + ROUNDS_TO_INTEGER) - ROUNDS_TO_INTEGER) * 0.001953125
    nearest = tl.where(size < 0.015625, subnormal, normal)
    return tl.where(codes < 0.0, -nearest, nearest)


@triton.jit
def _rounded(values, scale, zero, smallest, largest, CODES: tl.constexpr, ZEROS: tl.constexpr,
             STORED: tl.constexpr):  # fmt: skip
    """The nearest value of the grid; as in compressed-tensors, in the type of the scales."""
    codes = tl.div_rn(values, tl.maximum(scale, SMALLEST_SCALE))
    if ZEROS:
        codes = codes + zero
    codes = tl.minimum(tl.maximum(codes, smallest), largest)
    if CODES == 0:
        codes = (codes + ROUNDS_TO_INTEGER) - ROUNDS_TO_INTEGER
    elif CODES == 1:
        codes = _nearest_fp4(codes)
    else:
        codes = _nearest_fp8(codes)
    if ZEROS:
        codes = codes - zero
    rounded = codes * scale
    if STORED == 1:
        rounded = rounded.to(tl.bfloat16).to(tl.float32)
    elif STORED == 2:
        rounded = rounded.to(tl.float16).to(tl.float32)
    return rounded


@triton.jit
def _is_dropped(harm, other_1, other_2, other_3, BEFORE: tl.constexpr):
    """Whether the harm is among the two smallest of four. Of equal ones, the first is dropped:
    `BEFORE` of the others stand before this one."""
    smaller = tl.zeros_like(harm).to(tl.int32)
    smaller += tl.where(BEFORE > 0, other_1 <= harm, other_1 < harm).to(tl.int32)
    smaller += tl.where(BEFORE > 1, other_2 <= harm, other_2 < harm).to(tl.int32)
    smaller += tl.where(BEFORE > 2, other_3 <= harm, other_3 < harm).to(tl.int32)
    return smaller < 2


@triton.jit
def _harm(value, diagonal, kept, KEPT: tl.constexpr):
    harm = value * diagonal
    harm = harm * harm
    if KEPT:
        harm = tl.where(kept > 0.0, harm, -1.0)
    return harm


@triton.jit
def _dropped_of_four(values, originals, kept, columns, first, unit_ptr, diagonal_ptr, stride_unit,
                     KEPT: tl.constexpr):  # fmt: skip
    """Four bits a row: which of the four columns from `first` on become zero."""
    at_0 = (columns == first)[None, :]
    at_1 = (columns == first + 1)[None, :]
    at_2 = (columns == first + 2)[None, :]
    at_3 = (columns == first + 3)[None, :]
    row_0 = unit_ptr + first * stride_unit + first
    row_1 = row_0 + stride_unit
    row_2 = row_1 + stride_unit
    value_0 = _column(values, at_0)
    left_0 = _column(originals, at_0) - value_0
    value_1 = _column(values, at_1) + left_0 * tl.load(row_0 + 1)
    left_1 = _column(originals, at_1) - value_1
    value_2 = _column(values, at_2) + left_0 * tl.load(row_0 + 2)
    value_2 += left_1 * tl.load(row_1 + 2)
    left_2 = _column(originals, at_2) - value_2
    value_3 = _column(values, at_3) + left_0 * tl.load(row_0 + 3)
    value_3 += left_1 * tl.load(row_1 + 3)
    value_3 += left_2 * tl.load(row_2 + 3)
    harm_0 = _harm(value_0, tl.load(diagonal_ptr + first), _column(kept, at_0), KEPT)
    harm_1 = _harm(value_1, tl.load(diagonal_ptr + first + 1), _column(kept, at_1), KEPT)
    harm_2 = _harm(value_2, tl.load(diagonal_ptr + first + 2), _column(kept, at_2), KEPT)
    harm_3 = _harm(value_3, tl.load(diagonal_ptr + first + 3), _column(kept, at_3), KEPT)
    bits = _is_dropped(harm_0, harm_1, harm_2, harm_3, 0).to(tl.int32)
    bits += _is_dropped(harm_1, harm_0, harm_2, harm_3, 1).to(tl.int32) * 2
    bits += _is_dropped(harm_2, harm_0, harm_1, harm_3, 2).to(tl.int32) * 4
    bits += _is_dropped(harm_3, harm_0, harm_1, harm_2, 3).to(tl.int32) * 8
    return bits


@triton.jit
def _walk(
    values_ptr, originals_ptr, errors_ptr, unit_ptr, diagonal_ptr, scale_ptr, zero_ptr, group_ptr,
    kept_ptr, rows, width, stride_values, stride_originals, stride_errors, stride_unit,
    stride_scale, stride_kept, smallest, largest,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, CODES: tl.constexpr, STORED: tl.constexpr,
    GROUPS: tl.constexpr, ZEROS: tl.constexpr, KEPT: tl.constexpr, CHOOSE: tl.constexpr,
    STEP: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    columns = tl.arange(0, WIDTH)
    is_row = row < rows
    inside = is_row[:, None] & (columns < width)[None, :]
    values_at = values_ptr + row[:, None] * stride_values + columns[None, :]
    errors_at = errors_ptr + row[:, None] * stride_errors + columns[None, :]
    values = tl.load(values_at, mask=inside, other=0.0)
    originals_at = originals_ptr + row[:, None] * stride_originals + columns[None, :]
    originals = tl.load(originals_at, mask=inside, other=0.0)
    kept = values
    if KEPT:
        kept_at = kept_ptr + row[:, None] * stride_kept + columns[None, :]
        kept = tl.load(kept_at, mask=inside, other=0).to(tl.float32)
    scale = tl.full([ROWS], 1.0, dtype=tl.float32)
    zero = tl.zeros([ROWS], dtype=tl.float32)
    if CODES >= 0 and not GROUPS:
        scale = tl.load(scale_ptr + row * stride_scale, mask=is_row, other=1.0).to(tl.float32)
        if ZEROS:
            zero = tl.load(zero_ptr + row * stride_scale, mask=is_row, other=0.0)
    for first in range(0, width, STEP):
        dropped = tl.zeros([ROWS], dtype=tl.int32)
        if CHOOSE:
            dropped = _dropped_of_four(
                values, originals, kept, columns, first, unit_ptr, diagonal_ptr, stride_unit, KEPT
            )
        for step in tl.static_range(STEP):
            column = first + step
            is_column = (columns == column)[None, :]
            rounded = _column(values, is_column)
            if CODES >= 0:
                if GROUPS:
                    group = tl.load(group_ptr + column)
                    scale_at = row * stride_scale + group
                    scale = tl.load(scale_ptr + scale_at, mask=is_row, other=1.0).to(tl.float32)
                    if ZEROS:
                        zero = tl.load(zero_ptr + scale_at, mask=is_row, other=0.0)
                rounded = _rounded(rounded, scale, zero, smallest, largest, CODES, ZEROS, STORED)
            if KEPT:
                rounded = rounded * _column(kept, is_column)
            if CHOOSE:
                rounded = tl.where((dropped >> step) & 1 == 1, 0.0, rounded)
            error = _column(originals, is_column) - rounded
            behind = (columns > column) & (columns < width)
            unit = tl.load(unit_ptr + column * stride_unit + columns, mask=behind, other=0.0)
            values = tl.where(is_column, rounded[:, None], values + error[:, None] * unit[None, :])
            originals = tl.where(is_column, error[:, None], originals)
    tl.store(values_at, values, mask=inside)
    tl.store(errors_at, originals, mask=inside)


def walk(block: Block, grid: Grid | None, pruning: Pruning) -> None:
    """Rounds or prunes the columns of a block, one after the other."""
    rows, width = block.values.shape
    here = slice(block.start, block.start + width)
    kept = None if pruning.kept is None else pruning.kept[:, here]
    scale = zero_point = groups = None
    codes, stored, smallest, largest = NO_GRID, 0, 0.0, 0.0
    if grid is not None:
        scale, zero_point, codes = grid.scale, grid.zero_point, int(grid.codes)
        if scale.dtype not in STORED_AS:
            scale = scale.float()
        stored = STORED_AS[scale.dtype]
        smallest, largest = grid.range
        if grid.group_of_column is not None:
            groups = grid.group_of_column[here]
    unused = block.values
    _walk[(triton.cdiv(rows, ROWS_PER_PROGRAM),)](
        block.values, block.originals, block.errors, block.unit, block.diagonal,
        unused if scale is None else scale,
        unused if zero_point is None else zero_point,
        unused if groups is None else groups,
        unused if kept is None else kept.view(torch.int8),
        rows, width,
        block.values.stride(0), block.originals.stride(0), block.errors.stride(0),
        block.unit.stride(0), 0 if scale is None else scale.stride(0),
        0 if kept is None else kept.stride(0), smallest, largest,
        WIDTH=triton.next_power_of_2(width), ROWS=ROWS_PER_PROGRAM, CODES=codes, STORED=stored,
        GROUPS=groups is not None, ZEROS=zero_point is not None, KEPT=kept is not None,
        CHOOSE=pruning.choose, STEP=MASK_WIDTH if pruning.choose else 1, num_warps=1,
    )  # fmt: skip


assert set(Codes) == {0, 1, 2}, "the kernel knows these three"
