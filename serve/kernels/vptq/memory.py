"""Memory of weights in codebooks on a GPU, from the sizes of a checkpoint's tensors.

Kernels read the numbers of codebook entries in words of whole bytes, or with more bits that choose
one of several copies of an entry, so they may take more memory than in the file. The tensors of
`short_vectors.layout` and `vptq_prepared` are the truth; a test compares them. Copies of entries,
below the size of a multiprocessor's shared memory for each layer, are not counted.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from conf.files.stored_tensor import Tensor
from conf.formats.base.targets import group_of
from conf.formats.quant_args import Codebooks, QuantizationConfig
from conf.formats.vptq import INDICES, OUTLIER_INDICES

WORD_BITS, BYTE_BITS = 32, 8
SHORT_VECTOR, SHORT_ENTRIES = 4, (16, 16384)
"""What the kernels of vectors of four take, in one codebook."""
CHOICE_BITS = {2048: 2, 4096: 1}
"""Bits that choose a copy of an entry there, by the entries of the codebook."""
SHORT_TILE, TILE_COLUMNS = (8, 128), 256
"""Rows of vectors and columns that are filled up: in those kernels, and columns in the others."""
GENERAL_VECTORS = (4, 8)
LEAST_BITS = 16
"""Of a number in the general kernels, and in plain PyTorch, which has two of them."""


@dataclass(frozen=True)
class Numbers:
    """Numbers of codebook entries that one product reads."""

    vectors: int
    """Rows of vectors."""
    columns: int
    length: int
    entries: int
    residual_entries: int = 0

    @property
    def bytes(self) -> float:
        """On a GPU, of a model in 16 bit."""
        main, residual = _bits(self.entries), _bits(self.residual_entries)
        fewest, most = SHORT_ENTRIES
        if self.length == SHORT_VECTOR and not residual and fewest <= self.entries <= most:
            rows, columns = SHORT_TILE
            bits = main + CHOICE_BITS.get(self.entries, 0)
            return _filled(self.vectors, rows) * _filled(self.columns, columns) * bits / BYTE_BITS
        if self.length in GENERAL_VECTORS:
            bits = max(LEAST_BITS, _filled(main + residual, BYTE_BITS))
            return self.vectors * _filled(self.columns, TILE_COLUMNS) * bits / BYTE_BITS
        count = 2 if residual else 1
        return self.vectors * self.columns * count * LEAST_BITS / BYTE_BITS


def wider_numbers_bytes(
    tensors: Mapping[str, Tensor], quantization: QuantizationConfig | None
) -> float:
    """Bytes by which the weights in codebooks are larger on a GPU than in the checkpoint."""
    if quantization is None:
        return 0.0
    extra = 0.0
    for name, stored in tensors.items():
        module, _, suffix = name.rpartition(".")
        if suffix not in (INDICES, OUTLIER_INDICES):
            continue
        group = group_of(quantization, module)
        books = group.weights.codebooks if group is not None and group.weights else None
        if books is not None and len(stored.shape) == 3:
            held = sum(numbers.bytes for numbers in _numbers(suffix, stored.shape, books))
            extra += max(0.0, held - stored.bytes)
    return extra


def _numbers(suffix: str, shape: tuple[int, ...], books: Codebooks) -> Iterator[Numbers]:
    """Those of a stored tensor: each group of columns is multiplied on its own, and so are outlier
    columns. A group of more than half of the columns takes all of them (`blocks`)."""
    groups, vectors, size = shape
    if suffix == OUTLIER_INDICES:
        yield Numbers(vectors, size, books.outlier_vector_length, books.outlier_entries)
        return
    columns = size * WORD_BITS // books.index_bits
    whole = columns + books.outlier_columns if groups == 1 else columns
    for _ in range(groups):
        yield Numbers(vectors, whole, books.vector_length, books.entries, books.residual_entries)


def _bits(entries: int) -> int:
    return (entries - 1).bit_length() if entries else 0


def _filled(size: int, unit: int) -> int:
    return -(-size // unit) * unit
