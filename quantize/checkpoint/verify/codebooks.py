"""The stored numbers of one layer in codebooks, and whether they are sound.

A number is always one of its codebook's entries, since it has just as many bits. So damage shows in
numbers that repeat, in an order that is none, in codebooks and scales, and in the weights that they
stand for.
"""

import torch

from conf.formats.base.tensors import VECTOR_INDICES, Role
from conf.formats.vptq import ORDER, OUTLIER_INDICES, SCALE
from quantize.checkpoint.tensors import CheckpointTensors
from quantize.checkpoint.verify.codes import ENOUGH_VALUES, LayerReport, size_faults
from quantize.checkpoint.verify.expected import Linear
from quantize.vptq.layer import VectorLayer


def is_in_codebooks(layer: Linear) -> bool:
    """Whether the layer's weights are stored as numbers of codebook entries."""
    return layer.tensors[layer.codes_suffix].encoding == VECTOR_INDICES


def check_codebooks(tensors: CheckpointTensors, layer: Linear) -> LayerReport:
    """Checks a layer whose tensors have the right shapes and types."""
    assert layer.weights.codebooks is not None
    stored = {suffix: tensors[f"{layer.name}.{suffix}"] for suffix in layer.tensors}
    vectors = VectorLayer(layer.weights.codebooks, layer.rows, layer.columns, stored)
    faults = _table_faults(layer, stored) + _order_faults(layer, vectors)
    if faults:
        return LayerReport(faults)  # the weights cannot be looked up
    faults = _number_faults(layer, vectors)
    weights = vectors.dequantize().abs()
    row_sizes = weights.amax(dim=1)
    if not torch.isfinite(row_sizes).all():
        return LayerReport([*faults, f"{layer.stored} stands for NaN or infinite weights"])
    if row_sizes.any():
        faults += size_faults(layer.stored, row_sizes, weights.mean(dim=1), row_sizes > 0)
    return LayerReport(faults, float(row_sizes.median()))


def _table_faults(layer: Linear, stored: dict[str, torch.Tensor]) -> list[str]:
    """Faults of codebooks and scales."""
    faults = []
    for suffix, tensor in layer.tensors.items():
        values, name = stored[suffix], f"{layer.name}.{suffix}"
        if tensor.role not in (Role.CODEBOOK, Role.COLUMN_SCALE):
            continue
        if not torch.isfinite(values).all():
            faults.append(f"{name} holds NaN or infinite values")
        elif tensor.role is Role.CODEBOOK and values.min() == values.max():
            faults.append(f"{name} holds one value only")
        elif suffix == SCALE and (values == 0).any():
            faults.append(f"{name} holds scales of zero")
    return faults


def _order_faults(layer: Linear, vectors: VectorLayer) -> list[str]:
    """An order that leaves columns out, and numbers beyond the outlier columns' codebook."""
    faults = []
    if ORDER in vectors.tensors:
        columns = torch.arange(layer.columns)
        if not torch.equal(vectors.order().sort().values, columns):
            faults.append(f"{layer.name}.{ORDER} does not name each column once")
    if OUTLIER_INDICES in vectors.tensors:
        entries = vectors.codebooks.outlier_entries
        if int(vectors.outlier_numbers().max()) >= entries:
            name = f"{layer.name}.{OUTLIER_INDICES}"
            faults.append(f"{name} holds numbers beyond the codebook's {entries} entries")
    return faults


def _number_faults(layer: Linear, vectors: VectorLayer) -> list[str]:
    """Numbers that are the same everywhere, or throughout a row of vectors."""
    main, _ = vectors.numbers()
    if main.shape[-1] < ENOUGH_VALUES:
        return []
    if bool((main == main[0, 0, 0]).all()):
        return [f"{layer.stored} holds one number only"]
    if main.shape[1] > 1 and bool((main == main[:, :1]).all()):
        return [f"{layer.stored} holds the same row throughout"]
    constant = (main == main[..., :1]).all(dim=-1)
    if constant.any():
        row = int(constant.nonzero()[0][1]) * vectors.codebooks.vector_length
        return [f"{layer.stored} holds one number throughout the vectors of row {row}"]
    return []
