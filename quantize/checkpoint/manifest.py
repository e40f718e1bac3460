"""`quantline.json`, the manifest of a checkpoint. It is the contract with serve and evaluate."""

import hashlib
import json
import math
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from conf.errors import QuantlineError, bad_input
from conf.files.json_files import read_object, shown, validated
from conf.models import CONFIG
from conf.schema.recipe import HEAD_FORMATS, NUMBER_TYPES, STEPS, STRATEGIES
from conf.schema.steps import prunes
from quantize.checkpoint import claims
from quantize.checkpoint.claims import EDITABLE, WEIGHTS

__all__ = ["EDITABLE", "FILE", "WEIGHTS", "Manifest", "find", "published", "read"]

FILE = "quantline.json"
SCHEMA = 4
# The fields that each schema added; an older schema must not have them.
ADDED = {3: {"files"}, 4: {"architecture", "published", "digest"}}
READABLE = (2, 3, SCHEMA)
# Files that may be edited or removed.
NOT_CLAIMED = (FILE, "README.md", "generation_config.json")

Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(pattern=r"^[^/\\\x00-\x1f]+$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
PositiveCount = Annotated[int, Field(ge=1)]


class _Claim(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class NumberClaim(_Claim):
    """A number format of the recipe."""

    type: Annotated[str, Field(pattern=f"^({'|'.join(NUMBER_TYPES)})$")]
    bits: Annotated[int, Field(ge=1, le=16)]
    strategy: Annotated[str, Field(pattern=f"^({'|'.join(STRATEGIES)})$")]
    group_size: Annotated[int, Field(ge=-1)] | None
    symmetric: bool
    dynamic: bool | str


class RecipeClaim(_Claim):
    """The fields of a resolved recipe that checks depend on."""

    name: Text
    file: str | None
    description: str
    when: str
    hardware: str
    steps: Annotated[
        list[Annotated[str, Field(pattern=f"^({'|'.join(STEPS)})$")]], Field(min_length=1)
    ]
    weights: NumberClaim | None
    activations: NumberClaim | None
    lm_head: Annotated[str, Field(pattern=f"^({'|'.join(HEAD_FORMATS)})$")] | None
    kv_cache: str | None
    targets: Annotated[list[Text], Field(min_length=1)]
    ignore: list[Text]


class ModelClaim(_Claim):
    """The options of the original that the model card shows."""

    name: Text
    id: str | None
    revision: str | None


class OldProof(_Claim):
    """The proof in schemas 2 and 3."""

    model_config = ConfigDict(strict=True, extra="forbid")
    formats: Annotated[dict[Text, PositiveCount], Field(min_length=1)]
    tensors: PositiveCount
    bytes: PositiveCount
    faults: Annotated[list[str], Field(max_length=0)]
    reload_divergence: Amount


class ProofClaim(OldProof):
    """The proof in the current schema."""

    model_config = ConfigDict(strict=True, extra="allow")
    layers: PositiveCount


class TextClaim(_Claim):
    """The calibration text."""

    source: dict[str, Any]
    counts: dict[str, Any]


class CanaryClaim(_Claim):
    """A prompt and the checkpoint's answer."""

    prompt: str
    answer: str


class _OldContents(BaseModel):
    """The file in schemas 2 and 3. The names of its fields are checked before."""

    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())
    model: Text
    recipe: Text
    original: Annotated[ModelClaim, Field(alias="model_config")]
    model_sha256: Sha256
    recipe_config: RecipeClaim
    text: TextClaim | None
    errors: dict[str, dict[str, float | None]]
    fallbacks: list[str]
    layer_seconds: dict[str, list[Amount]]
    resumed_layers: Count
    seconds: dict[str, Amount]
    peak_memory_gib: dict[str, Amount]
    versions: Annotated[dict[Text, Text], Field(min_length=1)]
    device: str
    proof: OldProof
    canary: CanaryClaim
    files: dict[Name, str] = {}
    schema_number: Annotated[int, Field(alias="schema")]


class _Contents(_OldContents):
    """The file in the current schema, before it becomes a `Manifest`."""

    proof: ProofClaim
    files: Annotated[dict[Name, str], Field(min_length=1)]
    architecture: Annotated[dict[str, Any], Field(min_length=1)]
    published: Annotated[dict[Name, dict[str, Any]], Field(min_length=1)]
    digest: Sha256


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
    the output; sgpt likewise, by what pruning changed."""
    fallbacks: list[str]
    """Modules that GPTQ could only round."""
    layer_seconds: dict[str, list[float]]
    """Seconds for each layer, by step; layers of an earlier run are not in it."""
    resumed_layers: int
    """Layers that an earlier, interrupted run had finished."""
    seconds: dict[str, float]
    """How long each phase took."""
    peak_memory_gib: dict[str, float]
    """Highest use of host and GPU memory."""
    versions: dict[str, str]
    """Packages that made it."""
    device: str
    """The GPU or CPU that it was made on."""
    proof: dict[str, Any]
    """The result of verifying the saved files."""
    canary: dict[str, str]
    """A prompt and the answer that the checkpoint gave."""
    files: dict[str, str] = field(default_factory=dict)
    """Hash of each file beside this one, by name; empty for an editable file."""
    architecture: dict[str, Any] = field(default_factory=dict)
    """The original's config.json, without cosmetic fields."""
    published: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The fields of each editable file that affect what the model computes."""
    digest: str = ""
    """Hash of everything else in this file, which detects an edit."""
    schema: int = SCHEMA

    def seal(self, folder: Path, source: Path) -> None:
        """Records the files of the finished folder, and the architecture of the original."""
        self.files = hashes(folder)
        self.architecture = claims.fields(source / CONFIG)
        self.published = {
            name: claims.fields(folder / name)
            for name in claims.COSMETIC
            if (folder / name).is_file()
        }

    def write(self, folder: Path) -> None:
        content = asdict(self)
        for steps in content["errors"].values():  # JSON has no NaN
            steps.update({step: None for step, error in steps.items() if not math.isfinite(error)})
        content = sealed(content)
        (folder / FILE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    """The content of a manifest with its digest."""
    return content | {"digest": _content_digest(content)}


def _content_digest(content: dict[str, Any]) -> str:
    other_fields = {name: value for name, value in content.items() if name != "digest"}
    return hashlib.sha256(json.dumps(other_fields, sort_keys=True).encode()).hexdigest()


def read(folder: Path) -> Manifest:
    """The manifest of a checkpoint; raises with the file and key if it is invalid."""
    path = folder / FILE
    if not os.path.lexists(path):
        raise bad_input(f"{folder}: there is no {FILE}; it is no checkpoint of ours")
    content = read_object(path)
    schema = content.get("schema")
    if type(schema) is not int or schema not in READABLE:
        known = ", ".join(map(str, READABLE))
        raise bad_input(
            f"{path}: no manifest of schema {SCHEMA}: schema is {shown(schema)}; known: {known}"
        )
    _check_names(path, set(content), schema)
    validated(_Contents if schema == SCHEMA else _OldContents, content, str(path))
    manifest = Manifest(**content)
    _check_claims(path, manifest)
    return manifest


def _check_names(path: Path, names_in_file: set[str], schema: int) -> None:
    newer = {name for since, added_names in ADDED.items() if since > schema for name in added_names}
    expected = {entry.name for entry in fields(Manifest)} - newer
    for name in sorted(expected - names_in_file):
        raise bad_input(f"{path}: no manifest of schema {schema}: there is no {name}")
    for name in sorted(names_in_file - expected):
        raise bad_input(f"{path}: no manifest of schema {schema}: {shown(name)} is not part of it")


def _check_claims(path: Path, manifest: Manifest) -> None:
    """Checks beyond types: the files that every checkpoint has, and the digest."""
    if manifest.schema >= 3:
        if CONFIG not in manifest.files:
            raise bad_input(f"{path}: files does not name {CONFIG}")
        if not any(name.endswith(WEIGHTS) for name in manifest.files):
            raise bad_input(f"{path}: files names no weights")
        for name, value in manifest.files.items():
            if value != "" if name in EDITABLE else not _is_sha256(value):
                raise bad_input(f"{path}: files.{name} is {shown(value)}; no SHA-256 hash")
    if manifest.schema < SCHEMA:
        return
    for name in claims.COSMETIC:
        if (name in manifest.files) != bool(manifest.published.get(name)):
            raise bad_input(f"{path}: published.{name} is missing or is not among the files")
    if manifest.digest != _content_digest(asdict(manifest)):
        raise bad_input(f"{path}: was edited after it was published, its digest differs")


def _is_sha256(value: str) -> bool:
    return len(value) == 64 and set(value) <= set("0123456789abcdef")


def find(folder: Path) -> Manifest | None:
    """The manifest; None if the checkpoint is not ours."""
    return read(folder) if os.path.lexists(folder / FILE) else None


def hashes(folder: Path) -> dict[str, str]:
    """The hash of each published file, by name."""
    paths = sorted(path for path in folder.iterdir() if path.name not in NOT_CLAIMED)
    return {path.name: claims.digest(path) for path in paths if path.is_file()}


def changed(folder: Path, claimed: dict[str, str]) -> list[str]:
    """Faults of files that are missing or whose content is not what was published."""
    return claims.changed(folder, claimed)


def faults(folder: Path, manifest: Manifest) -> list[str]:
    """All differences between a folder and what was published."""
    weights = {name: sha256 for name, sha256 in manifest.files.items() if name.endswith(WEIGHTS)}
    return small_file_faults(folder, manifest) + claims.changed(folder, weights)


def small_file_faults(folder: Path, manifest: Manifest) -> list[str]:
    """Differences in files other than the weights, which take long to read."""
    small = {name: sha256 for name, sha256 in manifest.files.items() if not name.endswith(WEIGHTS)}
    file_faults = claims.changed(folder, small)
    if manifest.schema >= 3:
        file_faults += claims.added(folder, manifest.files)
    return file_faults + claims.edited(folder, manifest.published)


def unprovable(manifest: Manifest | None) -> list[str]:
    """What cannot be verified without a manifest, or with one of an older schema."""
    schema = manifest.schema if manifest else 0
    unproven = []
    if schema < 3:
        unproven.append(f"that the files are the published ones (no hashes in {FILE})")
    if schema < 4:
        unproven.append(f"that {CONFIG} describes the original (no architecture in {FILE})")
    return unproven


def is_pruned(folder: Path) -> bool | None:
    """Whether the checkpoint is pruned to 2:4; None if it is not ours."""
    try:
        return prunes(read(folder).recipe_config.get("steps") or [])
    except QuantlineError:
        return None


def published(root: Path, model: str) -> list[Path]:
    """The checkpoints of a model under a root, oldest first."""
    manifests = [
        path for path in (root / model).glob(f"*/{FILE}") if not path.parent.name.startswith(".")
    ]
    return [path.parent for path in sorted(manifests, key=lambda path: path.lstat().st_mtime)]
