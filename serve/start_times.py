"""Remembers how long a server took to start, so that the next start can show the time left."""

import hashlib
import json
from pathlib import Path

from conf.cache import cache_root
from conf.durations import duration


class StartTimes:
    """The last start time of a checkpoint with one set of options."""

    def __init__(self, folder: Path, command: list[str]) -> None:
        cache_key = json.dumps([str(folder.resolve()), *command])
        name = hashlib.sha256(cache_key.encode()).hexdigest()[:16]
        self.path = cache_root() / "starts" / name

    def remember(self, seconds: float) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(f"{seconds:.1f}")

    def time_left(self, spent: float) -> str:
        """The time left as text; the time spent where it is not known."""
        try:
            seconds = float(self.path.read_text()) - spent
        except (OSError, ValueError):
            return f"{duration(spent)} so far"
        return f"about {duration(seconds)} left" if seconds > 1 else f"{duration(spent)} so far"
