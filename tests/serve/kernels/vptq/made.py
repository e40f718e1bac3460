"""Made-up layers in codebooks, as a checkpoint stores them."""

import torch

from conf.formats.quant_args import Codebooks, QuantGroup, vector_args
from conf.formats.vptq import FORMAT, INDICES, ORDER, OUTLIER_INDICES
from quantize.vptq.layer import VectorLayer
from quantize.vptq.packing import pack

PLAIN = Codebooks(8, 256, 64)
OUTLIERS = Codebooks(
    8, 64, 16, outlier_columns=8, outlier_vector_length=4, outlier_entries=32, has_order=True
)
GROUPS = Codebooks(4, 64, groups=4, has_scales=False)
BOOKS = [
    PLAIN,
    OUTLIERS,
    GROUPS,
    Codebooks(8, 65536),
    Codebooks(8, 256, 256, has_order=True, has_scales=False),
]


def stored_layer(
    books: Codebooks, rows: int, columns: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16
) -> VectorLayer:
    """A layer with random numbers and codebooks."""
    generator = torch.Generator().manual_seed(seed)

    def numbers(entries: int, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randint(max(1, entries), shape, generator=generator)

    tensors = {}
    for name, stored in FORMAT.tensors(QuantGroup("a", vector_args(books)), rows, columns).items():
        shape = stored.shapes[0]
        if name == INDICES:
            shape = (*shape[:2], books.group_columns(columns))
            residual = numbers(books.residual_entries, shape) if books.residual_entries else None
            tensors[name] = pack(numbers(books.entries, shape), residual, books)
        elif name == OUTLIER_INDICES:
            tensors[name] = numbers(books.outlier_entries, shape).to(torch.int16)
        elif name == ORDER:
            tensors[name] = torch.randperm(columns, generator=generator).to(torch.int16)
        else:
            tensors[name] = torch.randn(shape, generator=generator).to(dtype)
    return VectorLayer(books, rows, columns, tensors)


def activations(tokens: int, columns: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(tokens)
    return torch.randn(tokens, columns, generator=generator).to(dtype)


def error(found: torch.Tensor, right: torch.Tensor) -> float:
    """Relative to the right one's norm."""
    return float((found.double() - right.double()).norm() / right.double().norm())
