"""How long a server took to start the last time, so that the next can say how long is left."""

import hashlib
import json
from pathlib import Path

from conf.cache import cache_root


class Starts:
    """The starts of one checkpoint with one set of options."""

    def __init__(self, folder: Path, command: list[str]) -> None:
        stated = json.dumps([str(folder.resolve()), *command])
        name = hashlib.sha256(stated.encode()).hexdigest()[:16]
        self.path = cache_root() / "starts" / name

    def remember(self, seconds: float) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(f"{seconds:.1f}")

    def left(self, spent: float) -> str:
        """In words."""
        try:
            seconds = float(self.path.read_text()) - spent
        except (OSError, ValueError):
            return f"{spent:.0f} s so far"
        return f"about {seconds:.0f} s left" if seconds > 1 else f"{spent:.0f} s so far"
