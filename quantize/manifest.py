"""`quantline.json`: what a checkpoint says of itself. The contract with serve and evaluate."""

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from conf.errors import QuantlineError, bad_input
from conf.models import files_sha256
from conf.recipe_schema import prunes

FILE = "quantline.json"
SCHEMA = 3
READABLE = (2, SCHEMA)
HASHES = "files"  # since schema 3
# What people may write in without making it another checkpoint.
NOT_HASHED = (FILE, "README.md", "generation_config.json")


@dataclass
class Manifest:
    """How a checkpoint was made, and the proof of what is in it."""

    model: str
    """Name of the original."""
    recipe: str
    """Name of the recipe."""
    model_config: dict[str, Any]
    """The original, as configured."""
    model_sha256: str
    """Hash of the original's weight files."""
    recipe_config: dict[str, Any]
    """The recipe as it was resolved."""
    text: dict[str, Any] | None
    """The calibration text and its counts; null where none is needed."""
    errors: dict[str, dict[str, float]]
    """The error of each step, by module, as the step measures it."""
    fallbacks: list[str]
    """Modules that GPTQ could only round."""
    layer_seconds: dict[str, list[float]]
    """Seconds for each layer, by step; layers of an earlier try are not in it."""
    resumed_layers: int
    """Layers that an earlier, interrupted try had finished."""
    seconds: dict[str, float]
    """How long each part took."""
    peak_memory_gib: dict[str, float]
    """Highest use of host and GPU memory."""
    versions: dict[str, str]
    """Packages that made it."""
    device: str
    """What it was made on."""
    proof: dict[str, Any]
    """What was found when the files were opened again."""
    canary: dict[str, str]
    """A prompt and the answer that the checkpoint gave."""
    files: dict[str, str] = field(default_factory=dict)
    """Hash of each file that an engine reads, by name."""
    schema: int = SCHEMA

    def write(self, folder: Path) -> None:
        (folder / FILE).write_text(json.dumps(asdict(self), indent=2) + "\n")


def read(folder: Path) -> Manifest:
    """The manifest of a checkpoint; complains by name about a file that is not one."""
    path = folder / FILE
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise bad_input(f"{folder}: there is no {FILE}; it is no checkpoint of ours") from error
    except json.JSONDecodeError as error:
        raise bad_input(f"{path}:{error.lineno}: no JSON ({error.msg})") from error
    names = {entry.name for entry in fields(Manifest)}
    whole = isinstance(content, dict) and {HASHES, *content} == names
    if not whole or content["schema"] not in READABLE:
        raise bad_input(f"{path}: no manifest of schema {SCHEMA}")
    return Manifest(**content)


def hashes(folder: Path) -> dict[str, str]:
    """Of each file of a checkpoint that an engine reads."""
    found = sorted(path for path in folder.iterdir() if path.name not in NOT_HASHED)
    return {path.name: files_sha256([path]) for path in found if path.is_file()}


def is_pruned(folder: Path) -> bool | None:
    """Whether two of four weights are zero; none where the checkpoint is not ours."""
    try:
        return prunes(read(folder).recipe_config.get("steps") or [])
    except QuantlineError:
        return None


def published(root: Path, model: str) -> list[Path]:
    """The checkpoints of a model under a root, oldest first."""
    found = [
        path for path in (root / model).glob(f"*/{FILE}") if not path.parent.name.startswith(".")
    ]
    return [path.parent for path in sorted(found, key=lambda path: path.stat().st_mtime)]
