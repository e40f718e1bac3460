"""A block of columns, and which weights in it are or become zero."""

from dataclasses import dataclass

import torch

TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class Pruning:
    """Which weights are or become zero."""

    kept: torch.Tensor | None = None
    """[rows, columns], true where a weight may differ from zero; none: everywhere."""
    choose: bool = False
    """Whether to choose two zeros in every four weights of a row."""

    def ordered(self, order: torch.Tensor | None) -> "Pruning":
        kept = self.kept if order is None or self.kept is None else self.kept[:, order]
        return Pruning(kept, self.choose)

    def rows(self, rows: slice) -> "Pruning":
        return Pruning(None if self.kept is None else self.kept[rows], self.choose)


NOTHING_PRUNED = Pruning()


@dataclass(frozen=True)
class Block:
    """A run of columns, with all that is needed to walk through them. Tensors are views: what is
    written to `values` and `errors` is the result."""

    start: int
    values: torch.Tensor
    """[rows, columns]: as they are before this block; afterwards rounded."""
    originals: torch.Tensor
    """[rows, columns]"""
    errors: torch.Tensor
    """[rows, columns]: afterwards originals less rounded."""
    unit: torch.Tensor
    """[columns, columns]: R_ik / R_kk."""
    diagonal: torch.Tensor
    """[columns]: R_kk."""
