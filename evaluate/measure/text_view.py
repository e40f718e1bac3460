"""A model's predictions for a text: a worker writes them, and accuracy compares them."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from conf.cache import cache_root
from conf.files.write_whole import write_alone


@dataclass
class TextView:
    """A model's predictions for a text, one row per position."""

    tokens: NDArray[Any]
    """The token of the text."""
    chosen: NDArray[Any]
    """Its log-probability."""
    likely: NDArray[Any]
    """The model's most likely tokens, in descending order."""
    scores: NDArray[Any]
    """Their log-probabilities."""
    continuations: NDArray[Any]
    """Greedy continuations of some openings, padded with -1."""

    def save(self, path: Path) -> None:
        with write_alone(path) as unfinished:
            numpy.savez_compressed(unfinished, **vars(self))

    @staticmethod
    def load(path: Path) -> "TextView":
        with numpy.load(path) as arrays:
            return TextView(**{name: arrays[name] for name in arrays.files})

    @property
    def perplexity(self) -> float:
        return float(numpy.exp(-self.chosen.astype(float).mean()))


def view_path(key: str, results: str = "") -> Path:
    """The file of a checkpoint's view of a text. The original's is kept for all evaluations. The
    view of another checkpoint is removed once it is judged, so it belongs to one results file."""
    if results:
        path = str(Path(results).expanduser().resolve())
        key = f"{key}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:12]}"
    return cache_root() / "views" / f"{key}.npz"
