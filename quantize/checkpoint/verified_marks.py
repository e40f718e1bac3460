"""Remembers which checkpoints passed verification, and under which verifying code.

A mark is valid only for the same files, the same manifest and the same verifier. The verifier is
the source of every module that verification may import and the versions of its libraries. A mark of
another verifier has another name.
"""

import hashlib
import importlib.metadata
import json
from functools import cache
from pathlib import Path

from conf import ROOT
from conf.cache import cache_root
from conf.checkpoint_hash import checkpoint_hash
from conf.models import files_sha256
from quantize.checkpoint import manifest

# `quantize.verify` may import from these; more files than needed only cost a new verification.
VERIFYING = ("conf", "quantize", "serve")
LIBRARIES = ("compressed-tensors", "safetensors", "torch", "transformers")


def mark(folder: Path, checkpoint: str | None = None) -> Path:
    """The file that exists once the checkpoint in the folder has passed verification. Take it, or
    the checkpoint's hash, before that: what is verified must be what is remembered."""
    manifest_file = folder / manifest.FILE
    manifest_hash = files_sha256([manifest_file]) if manifest_file.is_file() else ""
    cache_key = json.dumps([verifier(), checkpoint or checkpoint_hash(folder), manifest_hash])
    return cache_root() / "proven" / hashlib.sha256(cache_key.encode()).hexdigest()


def leave(mark: Path) -> None:
    """Remembers that the checkpoint of this mark has passed."""
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()


@cache
def verifier() -> str:
    """A hash of the verifying code: our sources by path, and the versions of the libraries."""
    digest = hashlib.sha256()
    for package in VERIFYING:
        for path in sorted((ROOT / package).rglob("*.py")):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(ROOT)} {len(content)}\n".encode() + content)
    for name in LIBRARIES:
        digest.update(f"{name} {importlib.metadata.version(name)}\n".encode())
    return digest.hexdigest()
