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
# What people may write in without making it another checkpoint; and what may even be gone.
EDITABLE = ("config.json", "tokenizer_config.json", "chat_template.jinja")
NOT_CLAIMED = (FILE, "README.md", "generation_config.json")
WEIGHTS = ".safetensors"


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
    """Errors by module and step. gptq: of the module's output on the calibration text, relative to
    the output. sgpt: llm-compressor's own sum, comparable only within a module."""
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
    """Hash of each file beside this one, by name; empty for one that people may write in."""
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
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema not in READABLE or set(content) != names - ({HASHES} if schema != SCHEMA else set()):
        raise bad_input(f"{path}: no manifest of schema {SCHEMA}")
    return Manifest(**content)


def find(folder: Path) -> Manifest | None:
    """The manifest, or none where the checkpoint is not ours."""
    return read(folder) if (folder / FILE).is_file() else None


def hashes(folder: Path) -> dict[str, str]:
    """What a checkpoint claims of its files."""
    found = sorted(path for path in folder.iterdir() if path.name not in NOT_CLAIMED)
    return {path.name: _hash(path) for path in found if path.is_file()}


def _hash(path: Path) -> str:
    return "" if path.name in EDITABLE else files_sha256([path])


def changed(folder: Path, claimed: dict[str, str]) -> list[str]:
    """Files that are gone, or are not what was published, down to the last bit."""
    here = {name: folder / name for name in claimed}
    gone = [f"{name} is missing" for name, path in here.items() if not path.is_file()]
    return gone + [
        f"{name} is not what was published, its hash differs"
        for name, path in here.items()
        if path.is_file() and _hash(path) != claimed[name]
    ]


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
