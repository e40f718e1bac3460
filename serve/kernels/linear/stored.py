"""A layer's parameters in vLLM, as a `Weight`. Nothing of the layer is changed."""

from collections.abc import Sequence
from typing import Any

import torch

from serve.kernels.products.product import Unusable, Weight

WORD = 32  # bits


def int8_weight(codes: torch.Tensor, scales: torch.Tensor, widths: Sequence[int]) -> Weight:
    """INT8 [N, K] with a scale for each channel, or for each of the merged parts."""
    codes = plain_tensor(codes).contiguous()
    return Weight(codes, row_scales(scales, codes.shape[0], widths), 8, codes.shape[1])


def fp8_weight(turned: torch.Tensor, scales: torch.Tensor, widths: Sequence[int]) -> Weight:
    """FP8 that vLLM's schemes have turned to [K, N] before the kernel sees it."""
    codes = plain_tensor(turned).t().contiguous()
    return Weight(codes, row_scales(scales, codes.shape[0], widths), 8, codes.shape[1])


def merged_widths(layer: torch.nn.Module) -> Sequence[int]:
    """Rows of each merged part, such as q, k and v."""
    widths: Sequence[int] = getattr(layer, "logical_widths", None) or ()
    return widths


def row_scales(scales: torch.Tensor, rows: int, widths: Sequence[int]) -> torch.Tensor:
    """[N, 1] in float32, from one scale for each row, for each merged part, or for all."""
    flat = plain_tensor(scales).float().reshape(-1)
    if flat.numel() == len(widths) > 1 and flat.numel() != rows:
        parts = torch.tensor(list(widths), device=flat.device)
        flat = flat.repeat_interleave(parts)
    if flat.numel() not in (1, rows):
        raise Unusable(f"has {flat.numel()} scales for {rows} rows")
    return flat.expand(rows).reshape(rows, 1).contiguous()


def packed_weight(
    codes: Any, scales: Any, zeros: Any | None, bits: int, group_size: int | None
) -> Weight:
    """Packed integers. vLLM's parameters say which of their dimensions is which."""
    words = _rows_first(codes, packed_dim=_dim(codes, "input_dim"))
    row_groups = _rows_first(scales)
    points = None
    if zeros is not None:
        words_of_zeros = _rows_first(zeros, packed_dim=_dim(zeros, "output_dim"))
        points = unpacked_rows(words_of_zeros, bits, words.shape[0])
    columns = words.shape[1] * WORD // bits
    if group_size is not None and row_groups.shape[1] * group_size != columns:
        raise Unusable(f"has {row_groups.shape[1]} groups of {group_size} in {columns} columns")
    if group_size is None and row_groups.shape[1] != 1:
        raise Unusable(f"has {row_groups.shape[1]} scales for each row")
    return Weight(words, row_groups, bits, columns, points, group_size)


def unpacked_rows(words: torch.Tensor, bits: int, rows: int) -> torch.Tensor:
    """[N, groups] integers from words that hold neighbours of a column: the first row in the lowest
    bits. Offset as the weights are: a weight is its code minus this, times its scale."""
    shifts = torch.arange(0, WORD, bits, device=words.device, dtype=torch.int32)
    values = (words.unsqueeze(1) >> shifts.view(1, -1, 1)) & ((1 << bits) - 1)
    return values.reshape(-1, words.shape[1])[:rows].contiguous()


def plain_tensor(parameter: torch.Tensor) -> torch.Tensor:
    """A parameter's values without vLLM's class, which knows how to load them."""
    return parameter.data.as_subclass(torch.Tensor)


def _rows_first(parameter: Any, packed_dim: int | None = None) -> torch.Tensor:
    """The parameter as [N, ...]; contiguous, without a copy if it is stored so."""
    stored = getattr(parameter, "packed_dim", None)
    if packed_dim is not None and stored != packed_dim:
        raise Unusable(f"is packed along dimension {stored}")
    data = plain_tensor(parameter)
    if data.dim() == 1:
        data = data.unsqueeze(1)
    return (data if _dim(parameter, "output_dim") == 0 else data.t()).contiguous()


def _dim(parameter: Any, name: str) -> int:
    """The number of a dimension; a scale for each channel has no input dimension."""
    dim = getattr(parameter, name, None)
    if not isinstance(dim, int):
        raise Unusable(f"does not say its {name}")
    return dim
