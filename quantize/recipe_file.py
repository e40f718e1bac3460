"""llm-compressor's own recipe files: read as they are, after a look at what it would pass over.

llm-compressor takes a file without the suffixes `_stage` and `_modifiers` for an empty recipe,
quantizes nothing and says nothing. Here every key is checked first.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from compressed_tensors.quantization.quant_scheme import PRESET_SCHEMES
from llmcompressor.modifiers import Modifier, ModifierFactory
from llmcompressor.recipe import Recipe
from pydantic import ValidationError

from conf.errors import bad_input, unknown
from conf.recipe_schema import RecipeConfig
from quantize.recipe import MASK

STEPS = {
    "SmoothQuantModifier": "smoothquant",
    "AWQModifier": "awq",
    "SparseGPTModifier": "sparsegpt",
    "GPTQModifier": "gptq",
    "AutoRoundModifier": "autoround",
    "QuantizationModifier": "rounding",
}
TUPLE = "tag:yaml.org,2002:python/tuple"


class _Loader(yaml.SafeLoader):
    """Safe, and takes the tuples that llm-compressor writes and cannot read again."""


def _tuple(loader: yaml.SafeLoader, node: Any) -> list[Any]:
    return loader.construct_sequence(node, deep=True)


_Loader.add_constructor(TUPLE, _tuple)


def read(path: Path) -> dict[str, Any]:
    """The file's content, every key checked."""
    if not path.is_file():
        raise bad_input(f"recipe.file: there is no file {path}")
    try:
        content = yaml.load(path.read_text(), _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise bad_input(f"{path}{line}: no YAML ({getattr(error, 'problem', error)})") from error
    if not isinstance(content, dict) or not content:
        raise bad_input(f"{path}: no recipe: a stage with modifiers is needed, the file is empty")
    for stage, groups in content.items():
        _suffix(path, str(stage), "_stage", groups)
        for group, modifiers in groups.items():
            _suffix(path, f"{stage}.{group}", "_modifiers", modifiers)
            for name, fields in modifiers.items():
                _modifier(path, name, fields or {})
    return content


def _suffix(path: Path, key: str, suffix: str, below: Any) -> None:
    if not key.endswith(suffix):
        raise bad_input(
            f"{path}: '{key}' needs the suffix {suffix}; without it llm-compressor passes it over"
        )
    if not isinstance(below, dict) or not below:
        raise bad_input(f"{path}: '{key}' is empty")


def _modifier(path: Path, name: str, fields: dict[str, Any]) -> None:
    if not ModifierFactory._loaded:
        ModifierFactory.refresh()
    if name not in ModifierFactory._main_registry:
        raise unknown(f"{path}: modifier", name, ModifierFactory._main_registry)
    if name not in STEPS:
        raise unknown(f"{path}: modifier that can be run and proven here", name, STEPS)
    known = ModifierFactory._main_registry[name].model_fields
    for field in fields:
        if field not in known:
            raise unknown(f"{path}: {name}", field, known)
    scheme = fields.get("scheme")
    for preset in [scheme] if isinstance(scheme, str) else []:
        if preset.upper() not in PRESET_SCHEMES:
            raise unknown(f"{path}: {name}.scheme", preset, PRESET_SCHEMES)


def from_file(recipe: RecipeConfig) -> tuple[RecipeConfig, list[Modifier]]:
    """The modifiers of `recipe.file`, and a recipe that describes them."""
    path = Path(str(recipe.file)).expanduser()
    content = read(path)
    try:
        modifiers = Recipe.create_instance(yaml.safe_dump(content, sort_keys=False)).modifiers
    except (ValidationError, ValueError) as error:
        raise bad_input(f"{path}: {' '.join(str(error).split())}") from error
    sparse = [modifier for modifier in modifiers if hasattr(modifier, "mask_structure")]
    for modifier in sparse:
        if modifier.mask_structure != MASK:
            found = modifier.mask_structure
            raise bad_input(f"{path}: mask_structure is {found}; {MASK} can be proven here")
    if sparse and any(_asymmetric(modifier) for modifier in modifiers):
        raise bad_input(f"{path}: zeros of a {MASK} mask survive only symmetric rounding")
    targets: list[str] = []
    ignore: list[str] = []
    for modifier in modifiers:
        targets += _listed(getattr(modifier, "targets", []))
        ignore += _listed(getattr(modifier, "ignore", []))
    described = replace(
        recipe,
        description=f"llm-compressor's {path.name}.",
        steps=[STEPS[type(modifier).__name__] for modifier in modifiers],
        weights=None,
        activations=None,
        lm_head=None,
        kv_cache=None,
        targets=list(dict.fromkeys(targets)) or ["Linear"],
        ignore=list(dict.fromkeys(ignore)),
    )
    return described, modifiers


def _asymmetric(modifier: Modifier) -> bool:
    if not hasattr(modifier, "resolve_quantization_config"):
        return False
    schemes = modifier.resolve_quantization_config().config_groups.values()
    return any(scheme.weights is not None and not scheme.weights.symmetric for scheme in schemes)


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or [])


def make_readable(folder: Path) -> None:
    """Writes a checkpoint's recipe.yaml again without tuples, so that llm-compressor accepts it."""
    path = folder / "recipe.yaml"
    if path.is_file():
        content = yaml.load(path.read_text(), _Loader)
        path.write_text(yaml.safe_dump(content, sort_keys=False))
