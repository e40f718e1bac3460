"""Verifies a checkpoint, step by step."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.utils import match_named_modules

from conf.errors import QuantlineError
from conf.files.json_files import JsonObject, check_regular, read_object
from conf.files.tensor_files import wrong_total
from conf.formats.base.tensors import Role
from conf.formats.quantization_config import KEY
from conf.models import CONFIG, read_config
from conf.schema.steps import may_sign_scales, prunes
from quantize.checkpoint import manifest
from quantize.checkpoint.manifest import Manifest
from quantize.checkpoint.manifest_parts import ProofClaim
from quantize.checkpoint.tensors import CheckpointTensors
from quantize.checkpoint.verify import values
from quantize.checkpoint.verify.architecture import build, differs_from_source, field_faults
from quantize.checkpoint.verify.codebooks import check_codebooks, is_in_codebooks
from quantize.checkpoint.verify.codes import (
    LayerReport,
    check_layer,
    has_signed_scales,
    is_readable,
    negative_share,
    size_outliers,
)
from quantize.checkpoint.verify.expected import Expectation, Linear, expect
from quantize.checkpoint.verify.proof import Proof
from quantize.checkpoint.verify.recipe import (
    RequestedRecipe,
    recipe_faults,
    requested_recipe,
)
from quantize.checkpoint.verify.schemes import Schemes, read_schemes
from quantize.checkpoint.verify.tokenizer import small_file_faults
from quantize.models.source_config import check_stated, check_values

EMBEDDINGS = ("model.embed_tokens.weight", "lm_head.weight")


def verify(
    folder: Path,
    sparse: bool | None = None,
    source: Path | None = None,
    recipe: RequestedRecipe | None = None,
    trust_remote_code: bool = False,
) -> Proof:
    """Verifies a checkpoint of compressed-tensors or VPTQ. `sparse`: whether 2:4 is claimed; by
    default the recipe decides. `source`: the original; if given, the architecture and the
    embeddings must equal its own. `recipe`: the requested recipe; by default the manifest's, if
    there is one."""
    config = read_config(folder)
    checkpoint_manifest = manifest.find(folder)
    if recipe is None and checkpoint_manifest:
        recipe = requested_recipe(checkpoint_manifest.recipe_config)
    if sparse is None:
        sparse = recipe is not None and prunes(recipe.steps)
    with CheckpointTensors(folder) as tensors:
        model = build(folder, config, tensors, trust_remote_code)
        verifier = _Verifier(model, config, folder, tensors)
        proof = verifier.run(recipe, sparse)
        if source is not None:
            proof.faults += _embedding_faults(tensors, source)
            proof.faults += _architecture_faults(folder, read_object(source / CONFIG), tensors)
        proof.faults += _field_value_faults(folder, model)
        if checkpoint_manifest:
            proof.faults += _manifest_faults(folder, checkpoint_manifest, proof, tensors)
    return proof


class _Verifier:
    """Verifies one checkpoint's files against the architecture and the config."""

    def __init__(
        self, model: Any, config: JsonObject, folder: Path, tensors: CheckpointTensors
    ) -> None:
        self.model, self.config, self.folder, self.tensors = model, config, folder, tensors
        self.schemes: Schemes = read_schemes(config, model, str(folder / CONFIG))
        self.expectation: Expectation = expect(model, self.schemes)
        self.faults = [*field_faults(read_object(folder / CONFIG)), *self.schemes.faults]
        self.unusable: set[str] = set()
        """Tensors that are missing, or have a wrong shape or type: their values are not checked."""
        self.sizes: dict[str, float] = {}
        """How large the weights of each linear layer are."""

    def run(self, recipe: RequestedRecipe | None, sparse: bool) -> Proof:
        self._check_tensors()
        pruned = self._pruned_modules(recipe) if sparse else set()
        formats = Counter(self._format_name(layer) for layer in self.expectation.linear)
        self._check_layers(pruned, recipe)
        self._check_values(pruned)
        self.faults += size_outliers(self.sizes)
        self.faults += values.tied_faults(self.tensors, self.expectation)
        if recipe is not None:
            targeted = self._matching_modules(recipe.targets, recipe.ignore)
            has_kv_cache = bool(self.schemes.attention)
            self.faults += recipe_faults(recipe, targeted, self.schemes.linear, has_kv_cache)
        vocabulary = self.config.get("vocab_size")
        known_vocabulary = vocabulary if isinstance(vocabulary, int) else None
        self.faults += small_file_faults(self.folder, known_vocabulary)
        size_fault = wrong_total(self.folder, self.tensors.stored)
        self.faults += [size_fault] if size_fault else []
        stored = self.tensors.stored.tensors.values()
        return Proof(
            dict(formats),
            len(self.expectation.linear),
            len(stored),
            sum(tensor.bytes for tensor in stored),
            self.faults,
        )

    def _check_tensors(self) -> None:
        """Checks that all expected tensors exist with their shapes and types, and no others."""
        self.faults += [
            f"{layer.name}: groups of {layer.weights.group_size} do not divide {layer.columns}"
            for layer in self.expectation.linear
            if layer.broken_group
        ]
        for name, expected in self.expectation.tensors.items():
            if name not in self.tensors:
                self.unusable.add(name)
                if expected.required and name != self.expectation.tied:
                    self.faults.append(f"{name} is missing")
                continue
            header = self.tensors.header(name)
            if header.shape not in expected.shapes:
                self.unusable.add(name)
                shape = expected.shapes[0]
                self.faults.append(f"{name} has the shape {header.shape}, {shape} is expected")
            if header.dtype not in expected.dtypes:
                self.unusable.add(name)
                types = " or ".join(expected.dtypes)
                self.faults.append(f"{name} is stored as {header.dtype}, {types} is expected")
        for name in sorted(set(self.tensors) - set(self.expectation.tensors)):
            self.faults.append(f"{name} belongs to no part of the model")

    def _matching_modules(self, targets: list[str], ignore: list[str]) -> set[str]:
        return {name for name, _ in match_named_modules(self.model, targets, ignore)}

    def _pruned_modules(self, recipe: RequestedRecipe | None) -> set[str]:
        """The modules that should be pruned to 2:4."""
        if recipe is None:
            return self._matching_modules(["Linear"], ["lm_head"])
        return self._matching_modules(recipe.targets, recipe.ignore)

    def _format_name(self, layer: Linear) -> str:
        """The name of a layer's format, as stored in the files."""
        if not layer.is_quantized:
            if layer.stored not in self.tensors:
                return (
                    "tied to the embedding" if layer.stored == self.expectation.tied else "missing"
                )
            names = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
            dtype = self.tensors.header(layer.stored).dtype
            return names.get(dtype, dtype)
        return layer.format.describe(layer.weights)

    def _check_layers(self, pruned: set[str], recipe: RequestedRecipe | None) -> None:
        usable = [layer for layer in self.expectation.linear if self._is_usable(layer)]
        for layer in filter(is_in_codebooks, usable):
            self._add_report(layer, check_codebooks(self.tensors, layer))
        usable = [layer for layer in usable if not is_in_codebooks(layer)]
        self.faults += [
            f"{layer.stored}: there is no check for the values of format {layer.format.name}"
            for layer in usable
            if not is_readable(layer)
        ]
        usable = [layer for layer in usable if is_readable(layer)]
        shares = [negative_share(self.tensors, layer) for layer in usable if layer.is_integer]
        signed = has_signed_scales(shares)
        if recipe is not None:
            signed = may_sign_scales(recipe.steps)
        for layer in usable:
            may_be_negative = signed and layer.is_integer
            report = check_layer(self.tensors, layer, layer.name in pruned, may_be_negative)
            self._add_report(layer, report)

    def _add_report(self, layer: Linear, report: LayerReport) -> None:
        self.faults += report.faults
        self.sizes[layer.stored] = report.typical_size

    def _is_usable(self, layer: Linear) -> bool:
        """Whether a layer is quantized and all tensors of its weights have the right shapes and
        types."""
        suffixes = [suffix for suffix in layer.tensors if not suffix.startswith("input_")]
        names = [f"{layer.name}.{suffix}" for suffix in suffixes]
        present = {name for name in names if name in self.tensors}
        return layer.is_quantized and not self.unusable & (present | self._required_names(names))

    def _required_names(self, names: Iterable[str]) -> set[str]:
        return {name for name in names if self.expectation.tensors[name].required}

    def _check_values(self, pruned: set[str]) -> None:
        copies = values.Copies()
        for name in self.tensors:
            expected = self.expectation.tensors.get(name)
            tensor = self.tensors[name]
            if tensor.numel() == 0:
                self.faults.append(f"{name} is empty")
                continue
            if expected is None or name in self.unusable:
                self.faults += values.tensor_faults(name, tensor, Role.OTHER)
                continue
            self.faults += values.tensor_faults(name, tensor, expected.role)
            if expected.role is Role.WEIGHT:
                self.sizes[name] = values.typical_size(tensor)
            if expected.role is Role.NORM:
                self.faults += values.norm_faults(self.model, name, tensor)
            if expected.role is Role.WEIGHT and name.removesuffix(".weight") in pruned:
                self.faults += values.mask_faults(name, tensor)
            if name != self.expectation.tied:
                self.faults += copies.faults(name, tensor, expected.role)


def _field_value_faults(folder: Path, model: Any) -> list[str]:
    """Values in config.json that no model can have, and required fields that are missing."""
    content = read_object(folder / CONFIG)
    content.pop(KEY, None)
    try:
        check_values(content, Path(CONFIG))
        check_stated(content, model.config, Path(CONFIG))
    except QuantlineError as error:
        return [str(error)]
    return []


def _embedding_faults(tensors: CheckpointTensors, source: Path) -> list[str]:
    """Embeddings and heads that differ from the original, though no step may change them."""
    with CheckpointTensors(source) as original:
        return [
            f"{name} is not the original's"
            for name in EMBEDDINGS
            if name in original
            and name in tensors
            and tensors[name].dtype == original[name].dtype
            and not torch.equal(tensors[name], original[name])
        ]


def _architecture_faults(
    folder: Path, original: JsonObject, tensors: CheckpointTensors
) -> list[str]:
    stored_head = any(name.startswith("lm_head.") for name in tensors)
    return differs_from_source(original, read_object(folder / CONFIG), stored_head)


def _manifest_faults(
    folder: Path, checkpoint_manifest: Manifest, proof: Proof, tensors: CheckpointTensors
) -> list[str]:
    """Differences between the folder and its manifest."""
    check_regular(folder / manifest.FILE)
    faults = manifest.faults(folder, checkpoint_manifest)
    claimed = checkpoint_manifest.proof
    compared = [
        ("formats", claimed.formats, proof.formats),
        ("tensors", claimed.tensors, proof.tensors),
        ("bytes", claimed.bytes, proof.bytes),
    ]
    if isinstance(claimed, ProofClaim):
        compared.append(("layers", claimed.layers, proof.layers))
    faults += [
        f"{manifest.FILE}: proof.{key} is {claimed_value}, the files have {value}"
        for key, claimed_value, value in compared
        if claimed_value != value
    ]
    if checkpoint_manifest.architecture:
        faults += _architecture_faults(folder, checkpoint_manifest.architecture, tensors)
    return faults
