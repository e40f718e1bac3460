"""`quantline.json`: what a checkpoint says of itself. The contract with serve and evaluate."""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from conf.errors import bad_input

FILE = "quantline.json"
SCHEMA = 1


@dataclass
class Manifest:
    """How a checkpoint was made."""

    model: str
    """Name of the original."""
    recipe: str
    """Name of the recipe."""
    model_config: dict[str, Any]
    """The original, as configured."""
    recipe_config: dict[str, Any]
    """The recipe as it was resolved."""
    text: dict[str, Any] | None
    """The calibration text and its counts; null where none is needed."""
    quantized_modules: int
    """Modules whose weights are stored in the recipe's format."""
    weight_bytes: int
    """Bytes of all safetensors files."""
    seconds: dict[str, float]
    """How long each part took."""
    versions: dict[str, str]
    """Packages that made it."""
    device: str
    """What it was made on."""
    canary: dict[str, str]
    """A prompt and the answer that the finished checkpoint gave."""
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
    names = {field.name for field in fields(Manifest)}
    if not isinstance(content, dict) or set(content) != names or content["schema"] != SCHEMA:
        raise bad_input(f"{path}: no manifest of schema {SCHEMA}")
    return Manifest(**content)


def published(root: Path, model: str) -> list[Path]:
    """The checkpoints of a model under a root, oldest first."""
    found = [
        path for path in (root / model).glob(f"*/{FILE}") if not path.parent.name.startswith(".")
    ]
    return [path.parent for path in sorted(found, key=lambda path: path.stat().st_mtime)]
