"""A model's view of a text: what a worker writes, and what accuracy compares."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from conf.cache import cache_root


@dataclass
class TextView:
    """What a model thinks of a text. One row a position."""

    tokens: NDArray[Any]
    """The token that stands there."""
    chosen: NDArray[Any]
    """Its log-probability."""
    likely: NDArray[Any]
    """The tokens that the model finds most likely, the first the most."""
    scores: NDArray[Any]
    """Their log-probabilities."""
    continuations: NDArray[Any]
    """Greedy continuations of some openings; -1 after their end."""

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial.npz")
        numpy.savez_compressed(partial, **vars(self))
        partial.replace(path)

    @staticmethod
    def load(path: Path) -> "TextView":
        with numpy.load(path) as arrays:
            return TextView(**{name: arrays[name] for name in arrays.files})

    @property
    def perplexity(self) -> float:
        return float(numpy.exp(-self.chosen.astype(float).mean()))


def view_path(key: str) -> Path:
    """Where a checkpoint's view of a text is kept; the original's stays, to be compared with."""
    return cache_root() / "views" / f"{key}.npz"
