"""The values that weights may take: codes of a number format times scales."""

from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property

import torch
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationStrategy,
    QuantizationType,
)
from compressed_tensors.quantization.quant_args import FP4_E2M1_DATA
from compressed_tensors.quantization.utils import calculate_range

from quantize.calibrate.solver.block import TINY


class Codes(IntEnum):
    """The number format of the codes, as the Triton kernel distinguishes them."""

    INT = 0
    FP4 = 1
    FP8 = 2


@dataclass(frozen=True)
class Grid:
    """One scale, and perhaps one zero point, for each row and group of columns."""

    args: QuantizationArgs
    """Number format; every strategy is written out as rows and groups here."""
    scale: torch.Tensor
    """[rows, groups], in the type that weights are stored in."""
    zero_point: torch.Tensor | None
    """[rows, groups]; none where codes are symmetric."""
    group_of_column: torch.Tensor | None
    """[columns]; none where a row has one scale."""

    @classmethod
    def of(
        cls,
        args: QuantizationArgs,
        shape: torch.Size,
        scale: torch.Tensor,
        zero_point: torch.Tensor | None,
        global_scale: torch.Tensor | None,
    ) -> "Grid":
        """The grid of one weight matrix, from the scales that its observer found."""
        rows, columns = shape
        if args.symmetric:
            zero_point = None
        if global_scale is not None:
            scale = scale / global_scale.reshape(-1)[0]
        by_row = _by_row(args, rows, scale)
        zeros = None if zero_point is None else _by_row(args, rows, zero_point).float()
        width = _group_width(args)
        groups = None if width is None else torch.arange(columns, device=scale.device) // width
        plain = args.model_copy(update={"strategy": QuantizationStrategy.CHANNEL})
        return cls(plain, by_row, zeros, groups)

    @classmethod
    def stacked(cls, grids: list["Grid"]) -> "Grid":
        """The grid of matrices of the same format, one below the other."""
        zeros = [grid.zero_point for grid in grids if grid.zero_point is not None]
        return replace(
            grids[0],
            scale=torch.cat([grid.scale for grid in grids]),
            zero_point=torch.cat(zeros) if zeros else None,
        )

    def rows(self, rows: slice) -> "Grid":
        """The grid of some of the rows."""
        zeros = None if self.zero_point is None else self.zero_point[rows]
        return replace(self, scale=self.scale[rows], zero_point=zeros)

    def ordered(self, order: torch.Tensor | None) -> "Grid":
        """The grid for columns in another order."""
        if order is None or self.group_of_column is None:
            return self
        return replace(self, group_of_column=self.group_of_column[order])

    def round(self, values: torch.Tensor, column: int) -> torch.Tensor:
        """The nearest values that a column [rows] may take, as compressed-tensors rounds."""
        scales, zeros, groups = self._by_group
        group = groups[column] if groups else 0
        codes = values / scales[group].clamp_min(TINY)
        if zeros is not None:
            codes += zeros[group]
        codes = self._nearest(codes.clamp_(*self.range)).to(scales.dtype)
        if zeros is not None:
            codes -= zeros[group].to(scales.dtype)
        return (codes * scales[group]).float()

    def _nearest(self, codes: torch.Tensor) -> torch.Tensor:
        if self.codes == Codes.INT:
            return codes.round_()
        if self.codes == Codes.FP8:
            return codes.to(torch.float8_e4m3fn).float()
        rounded: torch.Tensor = FP4_E2M1_DATA.cast_to_fp4(codes)
        return rounded

    @cached_property
    def _by_group(self) -> tuple[torch.Tensor, torch.Tensor | None, list[int]]:
        """Scales and zero points [groups, rows], so that those of a column are contiguous."""
        zeros = None if self.zero_point is None else self.zero_point.t().contiguous()
        groups = [] if self.group_of_column is None else self.group_of_column.tolist()
        return self.scale.t().contiguous(), zeros, groups

    @property
    def codes(self) -> Codes:
        if self.args.type == QuantizationType.INT:
            return Codes.INT
        return Codes.FP4 if self.args.num_bits == 4 else Codes.FP8

    @cached_property
    def range(self) -> tuple[float, float]:
        """The smallest and the largest code."""
        smallest, largest = calculate_range(self.args, "cpu")
        return float(smallest), float(largest)


def _by_row(args: QuantizationArgs, rows: int, values: torch.Tensor) -> torch.Tensor:
    if args.strategy == QuantizationStrategy.TENSOR:
        return values.reshape(1, 1).expand(rows, 1).contiguous()
    if args.strategy == QuantizationStrategy.BLOCK:
        return values.repeat_interleave(args.block_structure[0], dim=0)[:rows].contiguous()
    return values.reshape(rows, -1).contiguous()


def _group_width(args: QuantizationArgs) -> int | None:
    if args.strategy == QuantizationStrategy.BLOCK:
        return int(args.block_structure[1])
    if args.strategy in (QuantizationStrategy.GROUP, QuantizationStrategy.TENSOR_GROUP):
        return int(args.group_size)
    return None
