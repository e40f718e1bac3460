"""The cache folder: models that were made or fetched, logs, and Hydra's run folder."""

import os
from pathlib import Path

CACHE = "QUANTLINE_CACHE"


def cache_root() -> Path:
    """The folder of QUANTLINE_CACHE, or `quantline` in the user's cache folder."""
    chosen = os.environ.get(CACHE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "quantline"


def log_file(name: str) -> Path:
    """A log file of that name, for the output of libraries."""
    folder = cache_root() / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.log"
