"""Folders that hold a model, for messages about folders that do not."""

from pathlib import Path

from conf.files.json_files import shown_path
from conf.models import CONFIG

MOST_NAMED = 3
DEEPEST = 2


def models_below(folder: Path) -> str:
    """The end of a message: models in folders below this one; empty if there are none."""
    found = [
        path.parent
        for depth in range(1, DEEPEST + 1)
        for path in sorted(folder.glob("/".join(["[!.]*"] * depth + [CONFIG])))
    ]
    if not found:
        return ""
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return f"; below it are {', '.join(map(shown_path, found[:MOST_NAMED]))}{more}"
