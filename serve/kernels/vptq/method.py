"""A linear layer in codebooks in vLLM: its tensors, how they are loaded, and its product."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from vllm.model_executor.layers.linear import LinearMethodBase

from conf.formats.vptq import METHOD, LayerFields, codebook_fault
from serve.kernels import op, record
from serve.kernels.linear.loading import PREFIX, stored_bytes
from serve.kernels.vptq.blocks import blocks_of
from serve.kernels.vptq.parameters import Part, StoredTensors
from serve.kernels.vptq.product import PreparedLayer, prepared_layer

logger = logging.getLogger("vllm.quantline")
DUMMY = "dummy"


@dataclass(frozen=True)
class NamedLayer:
    """One of the layers that vLLM merges, or a layer that it does not merge."""

    name: str
    fields: LayerFields


class VptqLinearMethod(LinearMethodBase):  # type: ignore[misc]
    """One for each layer. Few tokens are multiplied by our kernel, more by unpacked weights; on a
    CPU all of them by plain PyTorch."""

    def __init__(self, prefix: str, named: Sequence[NamedLayer]) -> None:
        self.prefix, self.named = prefix, list(named)
        self.stored: StoredTensors | None = None
        self.inputs = (0, 0)
        self.key, self.rows, self.tensors = "", 0, tuple[str, ...]()

    def create_weights(
        self,
        layer: torch.nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Adds the tensors of a checkpoint to the layer."""
        split = Split.of(
            layer, input_size_per_partition, output_partition_sizes, input_size, output_size
        )
        self.inputs = split.inputs
        parts = split.parts(self.prefix, self.named)
        self.stored = StoredTensors(self.prefix, parts, params_dtype)
        self.stored.add_to(layer)
        self.rows = sum(output_partition_sizes)

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Brings the tensors into the form that products read. A second call changes nothing."""
        stored = self.stored
        if stored is None or self.key:
            return
        missing = stored.missing()
        if missing and (stored.loaded or not _is_dummy()):
            raise ValueError(f"{missing[0]}: the checkpoint has no such tensor")
        with torch.no_grad():
            parts = [(part.rows, blocks_of(part, *self.inputs)) for part in stored.layers()]
            prepared = prepared_layer(parts)
        op.put(prepared.key, prepared.planned)
        extra = stored_bytes(prepared.tensors) - stored_bytes(list(stored.parameters.values()))
        self._note(prepared, max(0, extra))
        names = []
        for number, tensor in enumerate(prepared.tensors):
            names.append(f"{PREFIX}{number}")
            layer.register_parameter(names[-1], torch.nn.Parameter(tensor, requires_grad=False))
        stored.empty()
        self.key, self.tensors, self.stored = prepared.key, tuple(names), None

    def apply(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1]).contiguous()
        tensors = [getattr(layer, name) for name in self.tensors]
        out = op.linear(flat, None, None, tensors, self.key, self.rows)
        out = out if bias is None else out + bias
        return out.reshape(*x.shape[:-1], self.rows)

    def _note(self, prepared: PreparedLayer, extra: int) -> None:
        """Logs what the layer runs: that of its largest block. `extra`: bytes by which it is larger
        than in the checkpoint, as numbers of codebook entries have more bits (`vptq.memory`)."""
        plan = max(prepared.product.blocks, key=lambda block: block.rows).plan
        columns = self.inputs[1] - self.inputs[0]
        kernels = record.LayerKernels(
            METHOD, self.rows, columns, plan.ranges, prepared.refused, extra
        )
        record.note(kernels, self.prefix)


@dataclass(frozen=True)
class Split:
    """What a rank of tensor parallelism has of a layer."""

    columns: int
    """Of the whole layer."""
    inputs: tuple[int, int]
    """The first and the last input of this rank."""
    rows: list[int]
    """Outputs of this rank, for each of the merged layers."""
    ranks: list[int]
    """This rank's number among those that share each of the merged layers."""
    shares: list[int]
    """How many ranks share each of them: keys and values may be on several ranks alike."""

    @staticmethod
    def of(layer: Any, columns_here: int, rows_here: list[int], columns: int, rows: int) -> "Split":
        rank = int(getattr(layer, "tp_rank", 0))
        column_rank = rank if columns_here < columns else 0
        inputs = (column_rank * columns_here, (column_rank + 1) * columns_here)
        share = rows // sum(rows_here)
        copies_of_keys = int(getattr(layer, "num_kv_head_replicas", 1))
        alike = [1] + [copies_of_keys] * (len(rows_here) - 1)
        shares = [share // copies for copies in alike]
        ranks = [rank // copies if share > 1 else 0 for copies in alike]
        return Split(columns, inputs, list(rows_here), ranks, shares)

    def parts(self, prefix: str, named: Sequence[NamedLayer]) -> list[Part]:
        """The merged layers. Raises ValueError for what does not fit, with the layer's name."""
        if len(named) == 1 and len(self.rows) > 1:  # merged in the checkpoint, too
            if max(self.shares) > 1:
                raise ValueError(
                    f"{prefix}: is stored as one layer; tensor parallelism would cut across its "
                    "codebooks; use tensor_parallel_size=1"
                )
            return Split(self.columns, self.inputs, [sum(self.rows)], [0], [1]).parts(prefix, named)
        if len(named) != len(self.rows):
            names = ", ".join(one.name for one in named)
            raise ValueError(f"{prefix}: has {len(self.rows)} parts, and the model names {names}")
        places = zip(named, self.rows, self.ranks, self.shares, strict=True)
        return [self._part(one, rows, rank, share) for one, rows, rank, share in places]

    def _part(self, one: NamedLayer, rows: int, rank: int, share: int) -> Part:
        books, fields = one.fields.codebooks, one.fields
        fault = codebook_fault(books)
        if fault is not None:
            raise ValueError(f"{one.name}: {fault}")
        sizes = (
            ("in_features", fields.in_features, self.columns),
            ("out_features", fields.out_features, rows * share),
        )
        for key, stated, size in sizes:
            if stated is not None and stated != size:
                raise ValueError(f"{one.name}: {key} is {stated}, not {size} as in the model")
        if books.group_columns(self.columns) * books.groups + books.outlier_columns != self.columns:
            raise ValueError(
                f"{one.name}: {books.groups} groups do not divide its {self.columns} columns"
            )
        lengths = [books.vector_length, *filter(None, [books.outlier_vector_length])]
        if share > 1 and any(rows % length for length in lengths):
            raise ValueError(
                f"{one.name}: {rows * share} outputs on {share} GPUs cut across vectors of "
                f"{max(lengths)}; use a smaller tensor_parallel_size"
            )
        return Part(one.name, books, rows, self.columns, rank * rows, share > 1)


def _is_dummy() -> bool:
    """Whether the engine makes its weights up instead of loading them."""
    from vllm.config import get_current_vllm_config_or_none

    load = getattr(get_current_vllm_config_or_none(), "load_config", None)
    return str(getattr(load, "load_format", "")) == DUMMY
