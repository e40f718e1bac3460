"""The identity of a checkpoint: one hash over its files."""

import hashlib
import json
from pathlib import Path

from conf.cache import cache_root
from conf.files.write_whole import write_once
from conf.models import CONFIG, SHAPES, files_sha256


def checkpoint_hash(folder: Path) -> str:
    """One hash over the weight files and the config; cached until a file changes."""
    files = [*sorted(folder.glob("*.safetensors")), folder / CONFIG]
    if (folder / SHAPES).is_file():
        files.append(folder / SHAPES)
    stamp = json.dumps([_stamp(path) for path in files])
    cached = cache_root() / "hashes" / hashlib.sha256(stamp.encode()).hexdigest()
    if cached.is_file():
        return cached.read_text()
    digest = files_sha256(files)
    write_once(cached, lambda unfinished: unfinished.write_text(digest))
    return digest


def _stamp(path: Path) -> list[str | int]:
    """Changes with every write: a program may set the modification time back, not the ctime."""
    stat = path.stat()
    times = (stat.st_mtime_ns, stat.st_ctime_ns)
    return [str(path.resolve()), stat.st_size, stat.st_dev, stat.st_ino, *times]
