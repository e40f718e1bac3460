"""The cache folder: models that were made or fetched, measured rates, logs, Hydra's run folder."""

import os
import re
from pathlib import Path

CACHE = "QUANTLINE_CACHE"
LIMITS = "limits"
"""The folder of what was measured of this machine's accelerators."""
RATES_FORMAT = 2


def cache_root() -> Path:
    """The folder of QUANTLINE_CACHE, or `quantline` in the user's cache folder."""
    chosen = os.environ.get(CACHE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "quantline"


def rates_file(machine: str, cards: list[str]) -> Path:
    """The measured rates of a GPU or CPU by its name, and by its card where that is known."""
    words = [*re.split("[ /]", machine), *cards[:1], str(RATES_FORMAT)]
    return cache_root() / LIMITS / f"{'-'.join(words)}.json"


def log_file(name: str) -> Path:
    """A log file of that name, for the output of libraries."""
    folder = cache_root() / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.log"
