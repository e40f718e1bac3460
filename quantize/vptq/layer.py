"""The stored tensors of one layer, and the weights that they stand for."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from conf.formats.quant_args import Codebooks
from conf.formats.vptq import (
    CENTROIDS,
    INDICES,
    OFFSET,
    ORDER,
    OUTLIER_INDICES,
    OUTLIERS,
    RESIDUAL,
    SCALE,
)
from quantize.vptq.packing import unpack

UNSIGNED_16_BIT = 0xFFFF


@dataclass(frozen=True)
class VectorShape:
    """The size of a layer in codebooks."""

    codebooks: Codebooks
    rows: int
    columns: int

    def layer(self, tensors: Mapping[str, torch.Tensor]) -> "VectorLayer":
        return VectorLayer(self.codebooks, self.rows, self.columns, tensors)


@dataclass(frozen=True)
class VectorLayer(VectorShape):
    """A layer in codebooks with its tensors, by the last parts of their names, as stored."""

    tensors: Mapping[str, torch.Tensor]

    def dequantize(self) -> torch.Tensor:
        """The weights [rows, columns] in float32: entries are summed and scaled there, and nothing
        is rounded in between."""
        stored = torch.cat([*self._outliers(), *self._groups()], dim=1)
        if ORDER in self.tensors:
            weights = torch.empty_like(stored)
            weights[:, self.order()] = stored
            stored = weights
        if SCALE in self.tensors:
            stored = stored * self.tensors[SCALE].float() + self.tensors[OFFSET].float()
        return stored

    def order(self) -> torch.Tensor:
        """The layer's column at each stored place."""
        return self.tensors[ORDER].to(torch.int64) & UNSIGNED_16_BIT

    def numbers(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The numbers [groups, vectors, columns] of main and residual entries."""
        width = self.codebooks.group_columns(self.columns)
        return unpack(self.tensors[INDICES], self.codebooks, width)

    def outlier_numbers(self) -> torch.Tensor:
        """The numbers [vectors, columns] of the outlier columns' entries."""
        return self.tensors[OUTLIER_INDICES][0].to(torch.int64) & UNSIGNED_16_BIT

    def _groups(self) -> list[torch.Tensor]:
        main, residual = self.numbers()
        length = self.codebooks.vector_length
        groups = []
        for group in range(self.codebooks.groups):
            entries = self.tensors[CENTROIDS][group].float().reshape(-1, length)
            weights = look_up(entries, main[group], self.rows)
            if residual is not None:
                entries = self.tensors[RESIDUAL][group].float().reshape(-1, length)
                weights = weights + look_up(entries, residual[group], self.rows)
            groups.append(weights)
        return groups

    def _outliers(self) -> list[torch.Tensor]:
        if not self.codebooks.outlier_columns:
            return []
        entries = self.tensors[OUTLIERS].float().reshape(-1, self.codebooks.outlier_vector_length)
        return [look_up(entries, self.outlier_numbers(), self.rows)]


def look_up(entries: torch.Tensor, numbers: torch.Tensor, rows: int) -> torch.Tensor:
    """Weights [rows, columns] of numbers [vectors, columns] of entries [entries, length]. The last
    vectors may be longer than the layer."""
    vectors = entries[numbers]  # [vectors, columns, length]
    return vectors.transpose(1, 2).reshape(-1, numbers.shape[1])[:rows]
