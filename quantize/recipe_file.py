"""llm-compressor's own recipe files: checked as strictly as our recipes, then run unchanged.

llm-compressor treats a file without the suffixes `_stage` and `_modifiers` as an empty recipe and
silently quantizes nothing. Here every key, type, range, format and order is checked first.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from compressed_tensors.compressors.format import infer_module_format
from compressed_tensors.config import CompressionFormat
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from llmcompressor.modifiers import Modifier, ModifierFactory
from llmcompressor.recipe import Recipe
from pydantic import BaseModel, ValidationError

from conf.errors import QuantlineError, bad_input, nearest, unknown
from conf.files import strict_yaml
from conf.files.strict_yaml import Keys, YamlFile
from conf.formats.base.refusals import Refusal
from conf.formats.quant_args import DYNAMIC, EXPONENT_SCALES, LOCAL, STATIC, QuantArgs
from conf.formats.served import kv_refusal, refusal, stated_spelling
from conf.schema.recipe import ROUNDERS, RecipeConfig, check_order
from conf.schema.steps import Kind
from conf.sources import TEAM_FOLDERS
from quantize.steps.base.file_fields import nested_names
from quantize.steps.base.step import Step, step_of_modifier

# Fields of our own recipes that no file of llm-compressor has.
OWN_FIELDS = {"defaults", "steps", "weights", "activations", "description"}
# llm-compressor's name for a field of ours.
LIBRARY_NAMES = {
    "bits": "num_bits",
    "scale_type": "scale_dtype",
    "activations": "input_activations",
    "kv_cache": "kv_cache_scheme",
}
SCALE_TYPES = {None: None, torch.float8_e4m3fn: "fp8", torch.uint8: EXPONENT_SCALES}


@dataclass(frozen=True)
class FileStep:
    """A step that a recipe file names."""

    step: Step[Any]
    modifier: Modifier
    place: Keys
    """Its keys in the file."""


def read(path: Path) -> YamlFile:
    """The file's content, every key, type and range checked."""
    if not path.is_file():
        raise bad_input(f"recipe.file: there is no file {path}")
    file = strict_yaml.read(path)
    if file.content is None or file.content == {}:
        raise bad_input(f"{path}: no recipe: a stage with modifiers is needed, the file is empty")
    if not isinstance(file.content, dict):
        raise bad_input(f"{path}: no recipe: a mapping of stages to modifiers is needed")
    if not OWN_FIELDS.isdisjoint(file.content):
        team = f"{TEAM_FOLDERS}={path.parent} recipe={path.stem}"
        raise bad_input(f"{path}: is a recipe of Quantline, not of llm-compressor; use {team}")
    for stage, groups in file.content.items():
        _check_suffix(file, (stage,), "_stage", groups)
        for group, modifiers in groups.items():
            _check_suffix(file, (stage, group), "_modifiers", modifiers)
            for name, fields in modifiers.items():
                _check_modifier(file, (stage, group, name), fields)
    return file


def _check_suffix(file: YamlFile, keys: Keys, suffix: str, content: Any) -> None:
    name = ".".join(map(str, keys))
    if not name.endswith(suffix):
        raise file.error(
            keys, f"'{name}' needs the suffix {suffix}; without it llm-compressor ignores it"
        )
    if content is None or content == {}:
        raise file.error(keys, f"'{name}' is empty")
    if not isinstance(content, dict):
        raise file.error(keys, f"'{name}' must be a mapping of names to values")


def _check_modifier(file: YamlFile, keys: Keys, fields: Any) -> None:
    if not ModifierFactory._loaded:
        ModifierFactory.refresh()
    name = str(keys[-1])
    if name not in ModifierFactory._main_registry:
        raise file.error(keys, str(unknown("modifier", name, ModifierFactory._main_registry)))
    steps = step_of_modifier()
    if name not in steps:
        message = str(unknown("modifier that can be run and verified here", name, steps))
        raise file.error(keys, message)
    if fields is None or fields == {}:
        raise file.error(keys, "is empty: give its options, as scheme: W8A8 or targets")
    if not isinstance(fields, dict):
        raise file.error(keys, f"{fields!r}: must be a mapping of options to values")
    schema = steps[name].file_fields()
    try:
        schema.model_validate(fields)
    except ValidationError as error:
        raise _deepest_error(file, keys, fields, error, schema) from error


def _deepest_error(
    file: YamlFile, keys: Keys, fields: Any, error: ValidationError, schema: type[BaseModel]
) -> QuantlineError:
    """The error with the longest path; pydantic also reports every type that it tried."""
    problems = [(_path_in_file(fields, problem["loc"]), problem) for problem in error.errors()]
    path, problem = max(problems, key=lambda entry: len(entry[0]))
    where, value = (*keys, *path), fields
    for key in path:
        value = value[key]
    if problem["type"] == "missing":
        return file.error((*where, problem["loc"][-1]), "is needed")
    if problem["type"] == "extra_forbidden" and len(path) == 1:
        return file.error(where, str(unknown("option", str(path[-1]), schema.model_fields)))
    if problem["type"] == "extra_forbidden":
        return file.error(
            where, f"there is no such option.{nearest(str(path[-1]), nested_names(schema))}"
        )
    if problem["type"] == "none_required":
        return file.error(where, f"{value!r}: cannot be used here; leave it out")
    reason = problem["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    return file.error(where, f"{value!r}: {reason}")


def _path_in_file(fields: Any, location: tuple[int | str, ...]) -> list[Any]:
    """The part of pydantic's location that exists in the file."""
    path: list[Any] = []
    value = fields
    for key in location:
        entries = dict(enumerate(value)) if isinstance(value, list) else value
        if isinstance(entries, dict) and key in entries:
            path.append(key)
            value = entries[key]
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
    steps = [step_of_modifier()[name] for _, _, name in places]
    _check_order(file, [step.name for step in steps])
    try:
        text = yaml.safe_dump(file.content, sort_keys=False)
        modifiers = Recipe.create_instance(text).modifiers
    except Exception as error:  # its classes raise errors of any type for a bad value
        raise bad_input(f"{file.path}: {_one_line(error)}") from error
    file_steps = [FileStep(*fields) for fields in zip(steps, modifiers, places, strict=True)]
    for entry in file_steps:
        if entry.step.kind is Kind.ROUNDS:
            _check_rounding(file, entry, file_steps)
    return _describing_recipe(recipe, file, file_steps), modifiers


def _one_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        problem = error.errors()[0]
        return f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
    return " ".join(str(error).split())


def _check_order(file: YamlFile, steps: list[str]) -> None:
    """As for our recipes, except that several modifiers may round different modules at the end."""
    first_rounding = next(
        (number for number, step in enumerate(steps) if step in ROUNDERS), len(steps)
    )
    rounding = steps[first_rounding:]
    checked_steps = (
        steps if any(step not in ROUNDERS for step in rounding) else steps[: first_rounding + 1]
    )
    try:
        check_order(f"{file.path}: the modifiers' order", checked_steps, bool(rounding))
    except ValueError as error:
        raise bad_input(str(error)) from error


def _check_rounding(file: YamlFile, rounding_step: FileStep, file_steps: list[FileStep]) -> None:
    """Checks the formats of a rounding modifier against those that an engine runs."""
    modifier: Any = rounding_step.modifier
    place = rounding_step.place
    try:
        config = modifier.resolved_config
    except Exception as error:
        raise file.error(place, _one_line(error)) from error
    groups_place = (*place, "config_groups" if modifier.config_groups else "scheme")
    _check_targets(file, place, modifier, config)
    for name, scheme in config.config_groups.items():
        group_place = (*groups_place, name) if modifier.config_groups else groups_place
        if scheme.weights is None:
            raise file.error(
                group_place, "quantizes no weights; give a scheme or config_groups with weights"
            )
        weights, activations = to_quant_args(scheme.weights), None
        if scheme.input_activations is not None:
            activations = to_quant_args(scheme.input_activations)
        refused = refusal(weights, activations)
        if refused is not None:
            raise _refusal_error(
                file, group_place, refused, getattr(scheme, _library_name(refused.part))
            )
        _settle_format(file, group_place, scheme, stated_spelling(weights, activations))
        _check_weights(file, weights, file_steps)
    if config.kv_cache_scheme is not None:
        refused = kv_refusal(to_quant_args(config.kv_cache_scheme))
        if refused is not None:
            raise _refusal_error(file, place, refused, config.kv_cache_scheme)


def _settle_format(
    file: YamlFile, group_place: Keys, scheme: QuantizationScheme, stated: str | None
) -> None:
    """Refuses a format that does not fit the numbers. Where compressed-tensors would infer one that
    engines do not load, sets `stated`."""
    if stated is not None:
        given = CompressionFormat(scheme.format or stated)
        if given.value != stated:
            message = f"{given.value}: engines load these weights as {stated}"
            raise file.error((*group_place, "format"), message)
        scheme.format = given
        return
    inferred = infer_module_format(torch.nn.Linear, scheme)
    if scheme.format is not None and scheme.format != inferred:
        raise file.error(
            (*group_place, "format"), f"{scheme.format}: these weights are {inferred.value}"
        )


def _check_weights(file: YamlFile, weights: QuantArgs, file_steps: list[FileStep]) -> None:
    """Checks every step of the file against the format that one of them rounds to."""
    for file_step in file_steps:
        options = file_step.step.options_in(file_step.modifier)
        try:
            file_step.step.check_scale_type(f"{file.path}", weights)
            file_step.step.check_weights(f"{file.path}", weights, options)
        except ValueError as error:
            raise bad_input(str(error)) from error


def _check_targets(file: YamlFile, place: Keys, modifier: Any, config: Any) -> None:
    """Refuses `targets` that llm-compressor ignores because the groups name their own."""
    groups = config.config_groups.values()
    group_targets = [target for scheme in groups for target in scheme.targets]
    repeated = [target for target in group_targets if group_targets.count(target) > 1]
    if repeated:
        raise file.error(place, f"'{repeated[0]}' is a target of two groups")
    targets = modifier.targets
    if targets != ["Linear"] and set(targets) != set(group_targets):
        raise file.error(
            (*place, "targets"),
            f"{targets}: is ignored, since the groups name their own targets, {group_targets}",
        )


def _refusal_error(
    file: YamlFile, place: Keys, refused: Refusal, args: QuantizationArgs
) -> QuantlineError:
    name = _library_name(refused.field)
    value = getattr(args, name)
    shown = str(value).lower() if isinstance(value, bool) else value
    return file.error((*place, _library_name(refused.part), name), f"{shown}: {refused.reason}")


def _library_name(field: str) -> str:
    return LIBRARY_NAMES.get(field, field)


def to_quant_args(args: QuantizationArgs) -> QuantArgs:
    """Converts compressed-tensors' description to ours."""
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


def _describing_recipe(
    recipe: RecipeConfig, file: YamlFile, file_steps: list[FileStep]
) -> RecipeConfig:
    """A recipe that describes the file: its steps, and the modules that they prune or round."""
    pruning_modifiers = [entry.modifier for entry in file_steps if entry.step.kind is Kind.PRUNES]
    main_modifier: Any = pruning_modifiers[-1] if pruning_modifiers else file_steps[-1].modifier
    return replace(
        recipe,
        description=f"llm-compressor's {file.path.name}.",
        steps=[entry.step.name for entry in file_steps],
        weights=None,
        activations=None,
        lm_head=None,
        kv_cache=None,
        targets=sorted(main_modifier.resolved_targets)
        if not pruning_modifiers
        else as_list(main_modifier.targets),
        ignore=as_list(main_modifier.ignore),
    )


def as_list(value: Any) -> list[str]:
    """A pattern or a list of patterns, as a list."""
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
