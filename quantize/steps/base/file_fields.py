"""Types for the fields of a modifier in an llm-compressor recipe file, with their ranges.

llm-compressor's own classes accept `true` for a whole number, a dampening of 7, or a flag that
switches calibration off. These types check a file before llm-compressor reads it. Each step states
the fields of its modifier (`Step.file_fields`); a field that is also an option of ours has the same
range.
"""

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, Self, get_args

from compressed_tensors.quantization.quant_scheme import PRESET_SCHEMES
from llmcompressor.observers.base import Observer
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from conf.errors import nearest
from conf.schema.number_format import STRATEGIES, NumberFormat
from conf.schema.ranges import Range, check_value, range_of
from conf.schema.recipe import check_pattern

OBSERVER_OPTIONS = ("averaging_constant", "maxshrink", "patience", "grid", "norm", "expand")
CHANNEL = -1  # a group size that means one scale for each channel


def whole_number(allowed: Range) -> Callable[[Any], Any]:
    """A validator for a whole number in a range. YAML reads 1e3 as a string, true as a number."""

    def check(value: Any) -> Any:
        number = _parsed_number(value)
        if isinstance(number, bool) or not isinstance(number, int | float) or number % 1:
            raise ValueError(f"must be a whole number, {allowed}")
        if number not in allowed:
            raise ValueError(f"must be {allowed}")
        return int(number)

    return check


def number(allowed: Range) -> Callable[[Any], Any]:
    """A validator for a number in a range."""

    def check(value: Any) -> Any:
        number = _parsed_number(value)
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise ValueError(f"must be a number, {allowed}")
        if number not in allowed:
            raise ValueError(f"must be {allowed}")
        return float(number)

    return check


def _parsed_number(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        return value


def _group_size(value: Any) -> Any:
    if value is None or (value == CHANNEL and not isinstance(value, bool)):
        return value
    return whole_number(range_of(NumberFormat, "group_size"))(value)


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _block_structure(value: Any) -> Any:
    """Rows and columns; llm-compressor also reads 128x128."""
    sizes = value.split("x") if isinstance(value, str) else value
    if not isinstance(sizes, list) or len(sizes) != 2:
        raise ValueError("must be rows and columns, as [128, 128]")
    return [whole_number(range_of(NumberFormat, "block_structure"))(size) for size in sizes]


def _known_preset(name: str) -> str:
    if name.upper() not in PRESET_SCHEMES:
        hint = nearest(name.upper(), PRESET_SCHEMES)
        raise ValueError(f"there is no '{name}'.{hint} Known: {', '.join(PRESET_SCHEMES)}.")
    return name


def _known_observer(name: str) -> str:
    known = [entry.replace("-", "_") for entry in Observer.registered_names()]
    if name.lower().replace("-", "_") not in known:
        hint = nearest(name, known)
        raise ValueError(f"there is no observer '{name}'.{hint} Known: {', '.join(known)}.")
    return name


def _valid_pattern(pattern: str) -> str:
    if not pattern.strip():
        raise ValueError("must not be empty")
    check_value("pattern", pattern, {})
    check_pattern("pattern", pattern)
    return pattern


def _pattern_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Pattern = Annotated[str, AfterValidator(_valid_pattern)]
Patterns = list[Pattern]
Targets = Annotated[Annotated[Patterns, Field(min_length=1)], BeforeValidator(_pattern_list)]
Preset = Annotated[str, AfterValidator(_known_preset)]
ObserverName = Annotated[str, AfterValidator(_known_observer)]


class Strict(BaseModel):
    """Accepts no other field and no other type."""

    model_config = ConfigDict(extra="forbid", strict=True)


class QuantizationArguments(Strict):
    """How one kind of tensor is stored."""

    num_bits: Annotated[int, BeforeValidator(whole_number(range_of(NumberFormat, "bits")))] = 8
    type: Annotated[Literal["int", "float"], BeforeValidator(_lower)] = "int"
    symmetric: bool = True
    group_size: Annotated[int | None, BeforeValidator(_group_size)] = None
    strategy: Annotated[Literal[*STRATEGIES, "attn_head"] | None, BeforeValidator(_lower)] = None  # type: ignore[valid-type]
    block_structure: Annotated[list[int], BeforeValidator(_block_structure)] | None = None
    dynamic: bool | Literal["local"] = False
    actorder: Literal["static", "weight", False] | None = None
    scale_dtype: str | None = None
    zp_dtype: str | None = None
    observer: ObserverName | None = None
    observer_kwargs: dict[
        Literal[*OBSERVER_OPTIONS],  # type: ignore[valid-type]
        Annotated[float, BeforeValidator(number(Range(0, 1e6)))],
    ] = {}

    @model_validator(mode="after")
    def _float_bits(self) -> Self:
        if self.type == "float" and self.num_bits not in (4, 8):
            raise ValueError(f"num_bits is {self.num_bits}; floats have 8 bits (FP8) or 4 (NVFP4)")
        return self


class Group(Strict):
    """One entry of config_groups."""

    targets: Targets
    weights: QuantizationArguments | None = None
    input_activations: QuantizationArguments | None = None
    output_activations: None = None
    format: str | None = None


class ModifierFields(Strict):
    """The fields of every modifier."""

    group: str | None = None
    index: None = None
    start: None = None
    end: None = None
    update: None = None


class RoundingFields(ModifierFields):
    """The fields of every modifier that rounds."""

    config_groups: dict[str, Group] | None = None
    targets: Targets = ["Linear"]
    ignore: Patterns = []
    scheme: Preset | dict[Preset, Targets] | None = None
    kv_cache_scheme: QuantizationArguments | None = None
    weight_observer: ObserverName | None = None
    input_observer: ObserverName | None = None
    output_observer: ObserverName | None = None
    observer: dict[Literal["weights", "input", "output"], ObserverName] | None = None
    bypass_divisibility_checks: Literal[False] = False


def nested_names(schema: type[BaseModel]) -> list[str]:
    """The names of all options below those of a modifier."""
    names = list(OBSERVER_OPTIONS)
    for field in schema.model_fields.values():
        for model in _models_in(field.annotation):
            names += [*model.model_fields, *nested_names(model)]
    return names


def _models_in(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)
