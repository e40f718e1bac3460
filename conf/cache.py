"""Where Quantline keeps what it made or fetched once: models, and Hydra's run folder."""

import os
from pathlib import Path

CACHE = "QUANTLINE_CACHE"


def cache_root() -> Path:
    """The folder of QUANTLINE_CACHE, or `quantline` in the user's cache folder."""
    own = os.environ.get(CACHE)
    if own:
        return Path(own).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "quantline"


def log_file(name: str) -> Path:
    """A log file of that name, for the chatter of the libraries below."""
    folder = cache_root() / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.log"
