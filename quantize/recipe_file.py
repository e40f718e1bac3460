"""llm-compressor's own recipe files: checked as our recipes are, then run as they are.

llm-compressor takes a file without the suffixes `_stage` and `_modifiers` for an empty recipe,
quantizes nothing and says nothing. Here every key, type, range, format and order is checked first.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from compressed_tensors.compressors.format import infer_module_format
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from llmcompressor.modifiers import Modifier, ModifierFactory
from llmcompressor.recipe import Recipe
from pydantic import BaseModel, ValidationError

from conf.errors import QuantlineError, bad_input, nearest, unknown
from conf.files import strict_yaml
from conf.files.strict_yaml import Keys, YamlFile
from conf.formats.quant_args import DYNAMIC, LOCAL, STATIC, QuantArgs
from conf.formats.refusals import Refusal
from conf.formats.served import kv_refusal, refusal
from conf.schema.recipe import ROUNDERS, RecipeConfig, check_order
from conf.schema.steps import Kind
from quantize.steps.base.file_fields import nested_names
from quantize.steps.base.step import Step, step_of_modifier

# A field of ours under llm-compressor's name.
THEIRS = {
    "bits": "num_bits",
    "scale_type": "scale_dtype",
    "activations": "input_activations",
    "kv_cache": "kv_cache_scheme",
}
SCALE_TYPES = {None: None, torch.float8_e4m3fn: "fp8"}


@dataclass(frozen=True)
class ChosenStep:
    """A step that a file names."""

    step: Step[Any]
    modifier: Modifier
    place: Keys
    """Where it stands in the file."""


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
    steps = step_of_modifier()
    if name not in steps:
        known = str(unknown("modifier that can be run and proven here", name, steps))
        raise file.error(keys, known)
    if fields is None or fields == {}:
        raise file.error(keys, "says nothing: give its options, as scheme: W8A8 or targets")
    if not isinstance(fields, dict):
        raise file.error(keys, f"{fields!r}: must be a mapping of options to values")
    schema = steps[name].file_fields()
    try:
        schema.model_validate(fields)
    except ValidationError as error:
        raise _deepest(file, keys, fields, error, schema) from error


def _deepest(
    file: YamlFile, keys: Keys, fields: Any, error: ValidationError, schema: type[BaseModel]
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
        return file.error(
            where, f"there is no such option.{nearest(str(path[-1]), nested_names(schema))}"
        )
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
    steps = [step_of_modifier()[name] for _, _, name in places]
    _check_order(file, [step.name for step in steps])
    try:
        written = yaml.safe_dump(file.content, sort_keys=False)
        modifiers = Recipe.create_instance(written).modifiers
    except Exception as error:  # its own classes raise whatever a bad value runs into
        raise bad_input(f"{file.path}: {_one_line(error)}") from error
    chosen = [ChosenStep(*parts) for parts in zip(steps, modifiers, places, strict=True)]
    for entry in chosen:
        if entry.step.kind is Kind.ROUNDS:
            _check_rounding(file, entry, chosen)
    return _described(recipe, file, chosen), modifiers


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


def _check_rounding(file: YamlFile, chosen: ChosenStep, all_chosen: list[ChosenStep]) -> None:
    """The formats of a modifier that rounds, against what an engine runs."""
    modifier: Any = chosen.modifier
    place = chosen.place
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
        refused = refusal(weights, activations)
        if refused is not None:
            raise _refused(file, at, refused, getattr(scheme, _theirs(refused.part)))
        inferred = infer_module_format(torch.nn.Linear, scheme)
        if scheme.format is not None and scheme.format != inferred:
            raise file.error(
                (*at, "format"), f"{scheme.format}: these weights are {inferred.value}"
            )
        _check_weights(file, weights, all_chosen)
    if config.kv_cache_scheme is not None:
        refused = kv_refusal(stored(config.kv_cache_scheme))
        if refused is not None:
            raise _refused(file, place, refused, config.kv_cache_scheme)


def _check_weights(file: YamlFile, weights: QuantArgs, all_chosen: list[ChosenStep]) -> None:
    """Every step of the file against the format that one of them rounds to."""
    for chosen in all_chosen:
        options = chosen.step.options_in(chosen.modifier)
        try:
            chosen.step.check_weights(f"{file.path}", weights, options)
        except ValueError as error:
            raise bad_input(str(error)) from error


def _check_targets(file: YamlFile, place: Keys, modifier: Any, config: Any) -> None:
    """llm-compressor passes over `targets` beside config_groups or a scheme with its own."""
    groups = config.config_groups.values()
    named = [target for scheme in groups for target in scheme.targets]
    twice = [target for target in named if named.count(target) > 1]
    if twice:
        raise file.error(place, f"'{twice[0]}' is a target of two groups")
    targets = modifier.targets
    if targets != ["Linear"] and set(targets) != set(named):
        raise file.error(
            (*place, "targets"),
            f"{targets}: is passed over, since the groups name their own targets, {named}",
        )


def _refused(file: YamlFile, at: Keys, refused: Refusal, args: QuantizationArgs) -> QuantlineError:
    name = _theirs(refused.field)
    value = getattr(args, name)
    shown = str(value).lower() if isinstance(value, bool) else value
    return file.error((*at, _theirs(refused.part), name), f"{shown}: {refused.reason}")


def _theirs(name: str) -> str:
    return THEIRS.get(name, name)


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


def _described(recipe: RecipeConfig, file: YamlFile, chosen: list[ChosenStep]) -> RecipeConfig:
    """What is said of the file elsewhere: its steps, and the modules that they prune or round."""
    prunes = [entry.modifier for entry in chosen if entry.step.kind is Kind.PRUNES]
    main: Any = prunes[-1] if prunes else chosen[-1].modifier
    return replace(
        recipe,
        description=f"llm-compressor's {file.path.name}.",
        steps=[entry.step.name for entry in chosen],
        weights=None,
        activations=None,
        lm_head=None,
        kv_cache=None,
        targets=sorted(main.resolved_targets) if not prunes else listed(main.targets),
        ignore=listed(main.ignore),
    )


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
