"""`quantline.json`, the manifest of a checkpoint. It is the contract with serve and evaluate."""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from conf.errors import QuantlineError, bad_input
from conf.files.json_files import JsonObject, read_object, shown, validated
from conf.models import CONFIG
from conf.schema.steps import prunes
from quantize.checkpoint import claims
from quantize.checkpoint.claims import EDITABLE, WEIGHTS
from quantize.checkpoint.manifest_parts import (
    Amount,
    CanaryClaim,
    Count,
    ModelClaim,
    Name,
    OldProofClaim,
    ProofClaim,
    RecipeClaim,
    Sha256,
    Text,
    TextClaim,
)

__all__ = ["EDITABLE", "FILE", "WEIGHTS", "Manifest", "find", "published", "read"]

FILE = "quantline.json"
SCHEMA = 4
# The fields that each schema added; an older schema must not have them.
ADDED = {3: {"files"}, 4: {"architecture", "published", "digest", "expert_tokens"}}
OPTIONAL = {"expert_tokens"}
READABLE = (2, 3, SCHEMA)
# Files that may be edited or removed.
NOT_CLAIMED = (FILE, "README.md", "generation_config.json")


class Manifest(BaseModel):
    """How a checkpoint was made, and the proof of what is in it. The names of the fields in the
    file are checked before their values, because they depend on the schema."""

    model_config = ConfigDict(
        strict=True, extra="forbid", protected_namespaces=(), populate_by_name=True
    )

    model: Text
    """Name of the original."""
    recipe: Text
    """Name of the recipe."""
    original: Annotated[ModelClaim, Field(alias="model_config")]
    """The original, as configured."""
    model_sha256: Sha256
    """Hash of the original's weight files."""
    recipe_config: RecipeClaim
    """The recipe as it was resolved."""
    text: TextClaim | None
    """The calibration text and its counts; null where none is needed."""
    errors: Mapping[str, Mapping[str, float | None]]
    """Errors by module and step; null in the file for NaN. gptq: of the module's output on the
    calibration text, relative to the output. sgpt: the same for what pruning changed."""
    fallbacks: list[str]
    """Modules that GPTQ could only round."""
    expert_tokens: dict[Text, list[Count]] = {}
    """Calibration tokens of each expert, by the name of the layer's experts; only for a mixture of
    experts that was calibrated."""
    layer_seconds: dict[str, list[Amount]]
    """Seconds for each layer, by step; layers of an earlier run are not in it."""
    resumed_layers: Count
    """Layers that an earlier, interrupted run had finished."""
    seconds: dict[str, Amount]
    """How long each phase took."""
    peak_memory_gib: dict[str, Amount]
    """Highest use of host and GPU memory."""
    versions: Annotated[dict[Text, Text], Field(min_length=1)]
    """Packages that made it."""
    device: str
    """The GPU or CPU that it was made on."""
    proof: ProofClaim | OldProofClaim
    """The result of verifying the saved files."""
    canary: CanaryClaim
    """A prompt and the answer that the checkpoint gave."""
    files: dict[Name, str] = {}
    """Hash of each file beside this one, by name; empty for an editable file."""
    architecture: JsonObject = {}
    """The original's config.json, without cosmetic fields."""
    published: dict[Name, JsonObject] = {}
    """The fields of each editable file that affect what the model computes."""
    digest: str = ""
    """Hash of everything else in this file, which detects an edit."""
    schema_number: Annotated[int, Field(alias="schema")] = SCHEMA

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
        content = sealed(self._content())
        (folder / FILE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    def _content(self) -> JsonObject:
        """The JSON object of the file."""
        finite_errors = {
            module: {
                step: error if error is not None and math.isfinite(error) else None
                for step, error in steps.items()
            }
            for module, steps in self.errors.items()
        }  # JSON has no NaN
        content: JsonObject = self.model_copy(update={"errors": finite_errors}).model_dump(
            by_alias=True
        )
        return {name: value for name, value in content.items() if value or name not in OPTIONAL}


class _OldManifest(Manifest):
    """A manifest of schema 2 or 3."""

    proof: OldProofClaim


class _CurrentManifest(Manifest):
    """A manifest of the current schema, in which no part may be missing or empty."""

    proof: ProofClaim
    files: Annotated[dict[Name, str], Field(min_length=1)]
    architecture: Annotated[JsonObject, Field(min_length=1)]
    published: Annotated[dict[Name, JsonObject], Field(min_length=1)]
    digest: Sha256


def sealed(content: JsonObject) -> JsonObject:
    """The content of a manifest with its digest."""
    return content | {"digest": _content_digest(content)}


def _content_digest(content: JsonObject) -> str:
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
    kind = _CurrentManifest if schema == SCHEMA else _OldManifest
    manifest: Manifest = validated(kind, content, str(path))
    _check_claims(path, manifest)
    # The digest is of the file's own numbers: 1 and 1.0 are different there.
    if schema == SCHEMA and manifest.digest != _content_digest(content):
        raise bad_input(f"{path}: was edited after it was published, its digest differs")
    return manifest


def _check_names(path: Path, names_in_file: set[str], schema: int) -> None:
    newer = {name for since, added_names in ADDED.items() if since > schema for name in added_names}
    expected = {field.alias or name for name, field in Manifest.model_fields.items()} - newer
    for name in sorted(expected - names_in_file - OPTIONAL):
        raise bad_input(f"{path}: no manifest of schema {schema}: there is no {name}")
    for name in sorted(names_in_file - expected):
        raise bad_input(f"{path}: no manifest of schema {schema}: {shown(name)} is not part of it")


def _check_claims(path: Path, manifest: Manifest) -> None:
    """Checks beyond types: the files that every checkpoint has."""
    if manifest.schema_number >= 3:
        if CONFIG not in manifest.files:
            raise bad_input(f"{path}: files does not name {CONFIG}")
        if not any(name.endswith(WEIGHTS) for name in manifest.files):
            raise bad_input(f"{path}: files names no weights")
        for name, value in manifest.files.items():
            if value != "" if name in EDITABLE else not _is_sha256(value):
                raise bad_input(f"{path}: files.{name} is {shown(value)}; no SHA-256 hash")
    if manifest.schema_number < SCHEMA:
        return
    for name in claims.COSMETIC:
        if (name in manifest.files) != bool(manifest.published.get(name)):
            raise bad_input(f"{path}: published.{name} is missing or is not among the files")


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
    if manifest.schema_number >= 3:
        file_faults += claims.added(folder, manifest.files)
    return file_faults + claims.edited(folder, manifest.published)


def unprovable(manifest: Manifest | None) -> list[str]:
    """What cannot be verified without a manifest, or with one of an older schema."""
    schema = manifest.schema_number if manifest else 0
    unproven = []
    if schema < 3:
        unproven.append(f"that the files are the published ones (no hashes in {FILE})")
    if schema < 4:
        unproven.append(f"that {CONFIG} describes the original (no architecture in {FILE})")
    return unproven


def is_pruned(folder: Path) -> bool | None:
    """Whether the checkpoint is pruned to 2:4; None if it is not ours."""
    try:
        return prunes(read(folder).recipe_config.steps)
    except QuantlineError:
        return None


def published(root: Path, model: str) -> list[Path]:
    """The checkpoints of a model under a root, oldest first."""
    manifests = [
        path for path in (root / model).glob(f"*/{FILE}") if not path.parent.name.startswith(".")
    ]
    return [
        path.parent for path in sorted(manifests, key=lambda path: (path.lstat().st_mtime_ns, path))
    ]
