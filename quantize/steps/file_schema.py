"""What may stand under each modifier of an llm-compressor recipe file, typed, with its range.

llm-compressor's own classes take `true` for a whole number, a dampening of 7, or a flag that
switches their calibration off. These stand at the border, before them; where a field is one of our
recipes' too, the range is taken from there.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from compressed_tensors.quantization.quant_scheme import PRESET_SCHEMES
from llmcompressor.observers.base import Observer
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from conf.errors import nearest
from conf.schema.ranges import Range, check_value, range_of
from conf.schema.recipe import (
    STRATEGIES,
    AutoRoundStep,
    AwqStep,
    GptqStep,
    NumberFormat,
    SmoothQuantStep,
    SparseGptStep,
    check_pattern,
)

OBSERVER_OPTIONS = ("averaging_constant", "maxshrink", "patience", "grid", "norm", "expand")
CHANNEL = -1  # a group size that means one scale for each channel


def _whole(allowed: Range) -> Callable[[Any], Any]:
    """YAML reads 1e3 as a text and true as a number; only a whole number in its range passes."""

    def check(value: Any) -> Any:
        number = _number_in(value)
        if isinstance(number, bool) or not isinstance(number, int | float) or number % 1:
            raise ValueError(f"must be a whole number, {allowed}")
        if number not in allowed:
            raise ValueError(f"must be {allowed}")
        return int(number)

    return check


def _number(allowed: Range) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        number = _number_in(value)
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise ValueError(f"must be a number, {allowed}")
        if number not in allowed:
            raise ValueError(f"must be {allowed}")
        return float(number)

    return check


def _number_in(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        return value


def _group_size(value: Any) -> Any:
    if value is None or (value == CHANNEL and not isinstance(value, bool)):
        return value
    return _whole(range_of(NumberFormat, "group_size"))(value)


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _block(value: Any) -> Any:
    """Rows and columns; llm-compressor also reads 128x128."""
    parts = value.split("x") if isinstance(value, str) else value
    if not isinstance(parts, list) or len(parts) != 2:
        raise ValueError("must be rows and columns, as [128, 128]")
    return [_whole(range_of(NumberFormat, "block_structure"))(part) for part in parts]


def _preset(name: str) -> str:
    if name.upper() not in PRESET_SCHEMES:
        hint = nearest(name.upper(), PRESET_SCHEMES)
        raise ValueError(f"there is no '{name}'.{hint} Known: {', '.join(PRESET_SCHEMES)}.")
    return name


def _observer(name: str) -> str:
    known = [entry.replace("-", "_") for entry in Observer.registered_names()]
    if name.lower().replace("-", "_") not in known:
        hint = nearest(name, known)
        raise ValueError(f"there is no observer '{name}'.{hint} Known: {', '.join(known)}.")
    return name


def _pattern(pattern: str) -> str:
    if not pattern.strip():
        raise ValueError("must not be empty")
    check_value("pattern", pattern, {})
    check_pattern("pattern", pattern)
    return pattern


def _patterns_in(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Pattern = Annotated[str, AfterValidator(_pattern)]
Patterns = list[Pattern]
Targets = Annotated[Annotated[Patterns, Field(min_length=1)], BeforeValidator(_patterns_in)]
Preset = Annotated[str, AfterValidator(_preset)]
ObserverName = Annotated[str, AfterValidator(_observer)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class QuantizationArguments(_Strict):
    """How one kind of tensor is stored."""

    num_bits: Annotated[int, BeforeValidator(_whole(range_of(NumberFormat, "bits")))] = 8
    type: Annotated[Literal["int", "float"], BeforeValidator(_lower)] = "int"
    symmetric: bool = True
    group_size: Annotated[int | None, BeforeValidator(_group_size)] = None
    strategy: Annotated[Literal[*STRATEGIES, "attn_head"] | None, BeforeValidator(_lower)] = None  # type: ignore[valid-type]
    block_structure: Annotated[list[int], BeforeValidator(_block)] | None = None
    dynamic: bool | Literal["local"] = False
    actorder: Literal["static", "weight", False] | None = None
    scale_dtype: str | None = None
    zp_dtype: str | None = None
    observer: ObserverName | None = None
    observer_kwargs: dict[
        Literal[*OBSERVER_OPTIONS],  # type: ignore[valid-type]
        Annotated[float, BeforeValidator(_number(Range(0, 1e6)))],
    ] = {}

    @model_validator(mode="after")
    def _float_bits(self) -> Self:
        if self.type == "float" and self.num_bits not in (4, 8):
            raise ValueError(f"num_bits is {self.num_bits}; floats have 8 bits (FP8) or 4 (NVFP4)")
        return self


class Group(_Strict):
    """One entry of config_groups."""

    targets: Targets
    weights: QuantizationArguments | None = None
    input_activations: QuantizationArguments | None = None
    output_activations: None = None
    format: str | None = None


class _AnyModifier(_Strict):
    group: str | None = None
    index: None = None
    start: None = None
    end: None = None
    update: None = None


class _Rounding(_AnyModifier):
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


class QuantizationFields(_Rounding):
    requires_calibration_data: bool = False


class GptqFields(_Rounding):
    requires_calibration_data: Literal[True] = True
    block_size: Annotated[int, BeforeValidator(_whole(range_of(GptqStep, "block_size")))] = 128
    dampening_frac: Annotated[float, BeforeValidator(_number(range_of(GptqStep, "dampening")))] = (
        0.01
    )
    actorder: Literal["static", "weight"] | None = None
    batched_quantization: (
        Literal["auto"] | Annotated[int, BeforeValidator(_whole(Range(1, 65536)))] | None
    ) = "auto"


class AutoRoundFields(_Rounding):
    requires_calibration_data: Literal[True] = True
    iters: Annotated[int, BeforeValidator(_whole(range_of(AutoRoundStep, "iterations")))] = 200
    enable_torch_compile: bool = True
    batch_size: Annotated[int, BeforeValidator(_whole(Range(1, 65536)))] = 8
    lr: Annotated[float, BeforeValidator(_number(Range(0, 1, above_least=True)))] | None = None
    device_ids: str | None = None
    disable_opt_rtn: bool = False


def _pair(value: Any) -> Any:
    """[[layers to balance], layer to smooth], as llm-compressor spells a mapping."""
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError("must be [[layers to balance], layer to smooth]")
    return {"balance_layers": value[0], "smooth_layer": value[1]}


class _Mapping(_Strict):
    balance_layers: Targets
    smooth_layer: Annotated[Annotated[Patterns, Field(min_length=1)], BeforeValidator(_patterns_in)]


SmoothQuantMapping = Annotated[_Mapping, BeforeValidator(_pair)]


class SmoothQuantFields(_AnyModifier):
    requires_calibration_data: Literal[True] = True
    smoothing_strength: Annotated[
        float, BeforeValidator(_number(range_of(SmoothQuantStep, "smoothing_strength")))
    ] = 0.5
    mappings: Annotated[list[SmoothQuantMapping], Field(min_length=1)] | None = None
    ignore: Patterns | None = None
    num_calibration_steps: None = None
    calibration_function: None = None
    algorithm: Literal["smoothquant", "log_equalization"] = "smoothquant"


class AwqMapping(_Strict):
    smooth_layer: Pattern
    balance_layers: Annotated[Patterns, Field(min_length=1)]
    activation_hook_target: str | None = None


class AwqFields(_AnyModifier):
    requires_calibration_data: Literal[True] = True
    mappings: Annotated[list[AwqMapping], Field(min_length=1)] | None = None
    offload_device: None = None
    duo_scaling: bool | Literal["both"] = True
    n_grid: Annotated[int, BeforeValidator(_whole(range_of(AwqStep, "grid")))] = 20


def _multiple_of_4(value: int) -> int:
    if value % 4:
        raise ValueError("must be a multiple of 4, the width of a 2:4 mask")
    return value


class SparseGptFields(_AnyModifier):
    requires_calibration_data: Literal[True] = True
    sparsity: Annotated[float, BeforeValidator(_number(Range(0.5, 0.5)))]
    mask_structure: Literal["2:4"]
    sparsity_profile: None = None
    owl_m: None = None
    owl_lmbda: None = None
    sequential_update: bool | None = False
    targets: Targets = ["Linear"]
    ignore: Patterns = []
    block_size: Annotated[
        int,
        BeforeValidator(_whole(range_of(SparseGptStep, "block_size"))),
        AfterValidator(_multiple_of_4),
    ] = 128
    dampening_frac: Annotated[
        float, BeforeValidator(_number(range_of(SparseGptStep, "dampening")))
    ] = 0.01
    preserve_sparsity_mask: bool = False
    offload_hessians: bool = False


FIELDS: dict[str, type[_AnyModifier]] = {
    "SmoothQuantModifier": SmoothQuantFields,
    "AWQModifier": AwqFields,
    "SparseGPTModifier": SparseGptFields,
    "GPTQModifier": GptqFields,
    "AutoRoundModifier": AutoRoundFields,
    "QuantizationModifier": QuantizationFields,
}
NESTED = (
    *QuantizationArguments.model_fields,
    *Group.model_fields,
    *AwqMapping.model_fields,
    *OBSERVER_OPTIONS,
)
