"""llm-compressor's own recipe files: checked as our recipes are, then run as they are.

llm-compressor takes a file without the suffixes `_stage` and `_modifiers` for an empty recipe,
quantizes nothing and says nothing. Here every key, type, range, format and order is checked first.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml
from compressed_tensors.compressors.format import infer_module_format
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from llmcompressor.modifiers import Modifier, ModifierFactory
from llmcompressor.recipe import Recipe
from pydantic import ValidationError

from conf.errors import QuantlineError, bad_input, nearest, unknown
from conf.files import strict_yaml
from conf.files.strict_yaml import Keys, YamlFile
from conf.formats.quant_args import DYNAMIC, LOCAL, STATIC, QuantArgs
from conf.formats.refusals import Refusal
from conf.formats.served import kv_refusal, refusal
from conf.schema.recipe import (
    ROUNDERS,
    RecipeConfig,
    check_order,
    check_together,
)
from quantize.steps.file_schema import FIELDS, NESTED
from quantize.steps.modifiers import with_dot

STEPS = {
    "SmoothQuantModifier": "smoothquant",
    "AWQModifier": "awq",
    "SparseGPTModifier": "sparsegpt",
    "GPTQModifier": "gptq",
    "AutoRoundModifier": "autoround",
    "QuantizationModifier": "rounding",
}
# A field of ours under llm-compressor's name.
THEIRS = {
    "bits": "num_bits",
    "scale_type": "scale_dtype",
    "activations": "input_activations",
    "kv_cache": "kv_cache_scheme",
}
SCALE_TYPES = {None: None, torch.float8_e4m3fn: "fp8"}


def read(path: Path) -> YamlFile:
    """The file's content, every key, type and range checked."""
    if not path.is_file():
        raise bad_input(f"recipe.file: there is no file {path}")
    file = strict_yaml.read(path)
    if file.content is None or file.content == {}:
        raise bad_input(f"{path}: no recipe: a stage with modifiers is needed, the file is empty")
    if not isinstance(file.content, dict):
        raise bad_input(f"{path}: no recipe: a mapping of stages to modifiers is needed")
    for stage, groups in file.content.items():
        _suffix(file, (stage,), "_stage", groups)
        for group, modifiers in groups.items():
            _suffix(file, (stage, group), "_modifiers", modifiers)
            for name, fields in modifiers.items():
                _modifier(file, (stage, group, name), fields)
    return file


def _suffix(file: YamlFile, keys: Keys, suffix: str, below: Any) -> None:
    name = ".".join(map(str, keys))
    if not name.endswith(suffix):
        raise file.error(
            keys, f"'{name}' needs the suffix {suffix}; without it llm-compressor passes it over"
        )
    if below is None or below == {}:
        raise file.error(keys, f"'{name}' is empty")
    if not isinstance(below, dict):
        raise file.error(keys, f"'{name}' must be a mapping of names to values")


def _modifier(file: YamlFile, keys: Keys, fields: Any) -> None:
    if not ModifierFactory._loaded:
        ModifierFactory.refresh()
    name = str(keys[-1])
    if name not in ModifierFactory._main_registry:
        raise file.error(keys, str(unknown("modifier", name, ModifierFactory._main_registry)))
    if name not in STEPS:
        known = str(unknown("modifier that can be run and proven here", name, STEPS))
        raise file.error(keys, known)
    if fields is None or fields == {}:
        raise file.error(keys, "says nothing: give its options, as scheme: W8A8 or targets")
    if not isinstance(fields, dict):
        raise file.error(keys, f"{fields!r}: must be a mapping of options to values")
    try:
        FIELDS[name].model_validate(fields)
    except ValidationError as error:
        raise _first(file, keys, fields, error, FIELDS[name]) from error


def _first(
    file: YamlFile, keys: Keys, fields: Any, error: ValidationError, schema: Any
) -> QuantlineError:
    """The complaint that reaches deepest; pydantic also names the types that it tried."""
    problems = [(_path(fields, problem["loc"]), problem) for problem in error.errors()]
    path, problem = max(problems, key=lambda entry: len(entry[0]))
    where, at = (*keys, *path), fields
    for part in path:
        at = at[part]
    if problem["type"] == "missing":
        return file.error((*where, problem["loc"][-1]), "is needed")
    if problem["type"] == "extra_forbidden" and len(path) == 1:
        return file.error(where, str(unknown("option", str(path[-1]), schema.model_fields)))
    if problem["type"] == "extra_forbidden":
        return file.error(where, f"there is no such option.{nearest(str(path[-1]), NESTED)}")
    if problem["type"] == "none_required":
        return file.error(where, f"{at!r}: cannot be used here; leave it out")
    reason = problem["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    return file.error(where, f"{at!r}: {reason}")


def _path(fields: Any, location: tuple[int | str, ...]) -> list[Any]:
    """The part of a location that stands in the file."""
    path: list[Any] = []
    at = fields
    for part in location:
        entries = dict(enumerate(at)) if isinstance(at, list) else at
        if isinstance(entries, dict) and part in entries:
            path.append(part)
            at = entries[part]
    return path


def from_file(recipe: RecipeConfig) -> tuple[RecipeConfig, list[Modifier]]:
    """The modifiers of `recipe.file`, and a recipe that describes them."""
    file = read(Path(str(recipe.file)).expanduser())
    places = [
        (stage, group, name)
        for stage, groups in file.content.items()
        for group, modifiers in groups.items()
        for name in modifiers
    ]
    steps = [STEPS[name] for _, _, name in places]
    _check_order(file, steps)
    try:
        written = yaml.safe_dump(file.content, sort_keys=False)
        modifiers = Recipe.create_instance(written).modifiers
    except Exception as error:  # its own classes raise whatever a bad value runs into
        raise bad_input(f"{file.path}: {_one_line(error)}") from error
    for place, modifier in zip(places, modifiers, strict=True):
        if hasattr(modifier, "resolve_quantization_config"):
            _check_rounding(file, place, modifier, steps, _duo_scaling(modifiers))
    described = _described(recipe, file, steps, modifiers)
    return described, modifiers


def _one_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        problem = error.errors()[0]
        return f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
    return " ".join(str(error).split())


def _check_order(file: YamlFile, steps: list[str]) -> None:
    """As for our recipes; but several modifiers may round, each its own modules, at the end."""
    first = next((number for number, step in enumerate(steps) if step in ROUNDERS), len(steps))
    rounding = steps[first:]
    shown = steps if any(step not in ROUNDERS for step in rounding) else steps[: first + 1]
    try:
        check_order(f"{file.path}: the modifiers' order", shown, bool(rounding))
    except ValueError as error:
        raise bad_input(str(error)) from error


def _duo_scaling(modifiers: list[Modifier]) -> bool:
    return any(getattr(modifier, "duo_scaling", False) for modifier in modifiers)


def _check_rounding(
    file: YamlFile, place: Keys, modifier: Any, steps: list[str], duo_scaling: bool
) -> None:
    """The formats of a modifier that rounds, against what an engine runs."""
    try:
        config = modifier.resolved_config
    except Exception as error:
        raise file.error(place, _one_line(error)) from error
    groups_at = (*place, "config_groups" if modifier.config_groups else "scheme")
    _check_targets(file, place, modifier, config)
    for name, scheme in config.config_groups.items():
        at = (*groups_at, name) if modifier.config_groups else groups_at
        if scheme.weights is None:
            raise file.error(
                at, "quantizes no weights; give a scheme or config_groups with weights"
            )
        weights, activations = stored(scheme.weights), None
        if scheme.input_activations is not None:
            activations = stored(scheme.input_activations)
        found = refusal(weights, activations)
        if found is not None:
            raise _refused(file, at, found, scheme)
        inferred = infer_module_format(torch.nn.Linear, scheme)
        if scheme.format is not None and scheme.format != inferred:
            raise file.error(
                (*at, "format"), f"{scheme.format}: these weights are {inferred.value}"
            )
        try:
            check_together(f"{file.path}", steps, weights, duo_scaling)
        except ValueError as error:
            raise bad_input(str(error)) from error
    if config.kv_cache_scheme is not None:
        found = kv_refusal(stored(config.kv_cache_scheme))
        if found is not None:
            holder = {"kv_cache_scheme": config.kv_cache_scheme}
            raise _refused(file, place, found, holder)


def _check_targets(file: YamlFile, place: Keys, modifier: Any, config: Any) -> None:
    """llm-compressor passes over `targets` beside config_groups or a scheme with its own."""
    groups = config.config_groups.values()
    named = [target for scheme in groups for target in scheme.targets]
    twice = [target for target in named if named.count(target) > 1]
    if twice:
        raise file.error(place, f"'{twice[0]}' is a target of two groups")
    asked = modifier.targets
    if asked != ["Linear"] and set(asked) != set(named):
        raise file.error(
            (*place, "targets"),
            f"{asked}: is passed over, since the groups name their own targets, {named}",
        )


def _refused(file: YamlFile, at: Keys, found: Refusal, scheme: Any) -> QuantlineError:
    part, name = THEIRS.get(found.part, found.part), THEIRS.get(found.field, found.field)
    args = scheme[part] if isinstance(scheme, dict) else getattr(scheme, part)
    value = getattr(args, name)
    shown = str(value).lower() if isinstance(value, bool) else value
    return file.error((*at, part, name), f"{shown}: {found.reason}")


def stored(args: QuantizationArgs) -> QuantArgs:
    """compressed-tensors' description in the words of the table of what engines run."""
    scales = LOCAL if args.dynamic == "local" else DYNAMIC if args.dynamic else STATIC
    return QuantArgs(
        str(getattr(args.type, "value", args.type)),
        args.num_bits,
        str(getattr(args.strategy, "value", args.strategy)),
        None if args.group_size == -1 else args.group_size,
        args.block_structure,
        args.symmetric,
        scales,
        SCALE_TYPES.get(args.scale_dtype, str(args.scale_dtype)),
    )


def _described(
    recipe: RecipeConfig, file: YamlFile, steps: list[str], modifiers: list[Modifier]
) -> RecipeConfig:
    """What is said of the file elsewhere: its steps, and the modules that they prune or round."""
    prunes = [modifier for modifier in modifiers if hasattr(modifier, "mask_structure")]
    main: Any = (prunes or modifiers)[-1]
    return replace(
        recipe,
        description=f"llm-compressor's {file.path.name}.",
        steps=steps,
        weights=None,
        activations=None,
        lm_head=None,
        kv_cache=None,
        targets=sorted(main.resolved_targets) if not prunes else listed(main.targets),
        ignore=listed(main.ignore),
    )


def runnable(modifiers: list[Modifier]) -> list[Modifier]:
    """The modifiers with SparseGPT's ignore list spelled so that it ignores what it names."""
    for modifier in modifiers:
        if hasattr(modifier, "mask_structure"):
            modifier.ignore = [part for pattern in modifier.ignore for part in with_dot(pattern)]
    return modifiers


def listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or [])


def scheme_targets(modifier: Any) -> dict[str, QuantizationScheme]:
    """The scheme of every target of a modifier that rounds, in compressed-tensors' order."""
    groups = modifier.resolved_config.config_groups.values()
    return {target: scheme for scheme in groups for target in scheme.targets}


def make_readable(folder: Path) -> None:
    """Writes a checkpoint's recipe.yaml again without tuples, so that llm-compressor accepts it."""
    path = folder / "recipe.yaml"
    if path.is_file():
        path.write_text(yaml.safe_dump(strict_yaml.read(path).content, sort_keys=False))
