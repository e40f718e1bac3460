"""The only reader of `quantization_config`, the part of config.json about quantization.

compressed-tensors writes groups of modules. Other tools (GPTQ, AWQ, vLLM's FP8, VPTQ) write their
own fields, which the stored format of their `quant_method` reads.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from conf.files.json_files import JsonObject, validated
from conf.formats.quant_args import (
    DYNAMIC,
    EXPONENT_SCALES,
    INT,
    LOCAL,
    STATIC,
    QuantArgs,
    QuantGroup,
    QuantizationConfig,
)
from conf.formats.registry import format_of_method

KEY = "quantization_config"
COMPRESSED_TENSORS = "compressed-tensors"
DENSE = "dense"
DEFAULT_BITS = 8  # compressed-tensors' own
SCALE_TYPES = {
    "torch.float8_e4m3fn": "fp8",
    "float8_e4m3fn": "fp8",
    "torch.uint8": EXPONENT_SCALES,
    "uint8": EXPONENT_SCALES,
}
Size = Annotated[int, Field(ge=1, le=2**31)]
GroupSize = Annotated[int, Field(ge=-1, le=2**20)]
BlockStructure = (
    Annotated[list[Size], Field(min_length=2, max_length=2)]
    | Annotated[str, Field(pattern=r"^[1-9]\d*x[1-9]\d*$")]
)
Bits = Annotated[int, Field(ge=1, le=32)]


class _Args(BaseModel):
    """How one kind of tensor is quantized, as compressed-tensors writes it."""

    model_config = ConfigDict(strict=True, extra="allow")
    num_bits: Bits | None = None
    type: str | None = None
    symmetric: bool | None = None
    strategy: str | None = None
    group_size: GroupSize | None = None
    block_structure: BlockStructure | None = None
    dynamic: bool | Literal["local"] | None = None


class _Group(BaseModel):
    """Modules that are quantized alike."""

    model_config = ConfigDict(strict=True, extra="allow")
    targets: list[str] | None = None
    weights: _Args | None = None
    input_activations: _Args | None = None
    output_activations: _Args | None = None
    format: str | None = None


class QuantizationFields(BaseModel):
    """`quantization_config` as it is written, typed and with its ranges."""

    model_config = ConfigDict(strict=True, extra="allow")
    quant_method: str | None = None
    config_groups: dict[str, _Group] | None = None
    format: str | None = None
    quantization_status: str | None = None
    ignore: list[str] | None = None
    kv_cache_scheme: _Args | None = None
    sparsity_config: JsonObject | None = None
    transform_config: JsonObject | None = None
    bits: Bits | None = None
    w_bit: Bits | None = None
    group_size: GroupSize | None = None
    q_group_size: GroupSize | None = None


def quantization_of(config: Mapping[str, object]) -> QuantizationConfig | None:
    """The quantization config of a config.json; None for a model that is not quantized."""
    return read_quantization(config.get(KEY), KEY)


def read_quantization(content: object, where: str) -> QuantizationConfig | None:
    """Reads a `quantization_config`; raises, with the key, for an invalid value."""
    if not content:
        return None
    fields: QuantizationFields = validated(QuantizationFields, content, where)
    sparsity = fields.sparsity_config
    return QuantizationConfig(
        method=fields.quant_method,
        groups=_groups(fields),
        format=fields.format or "",
        status=fields.quantization_status or "",
        ignore=fields.ignore or [],
        kv_cache=_args(fields.kv_cache_scheme),
        sparsity=str(sparsity.get("format", DENSE)) if sparsity else None,
    )


def _groups(fields: QuantizationFields) -> list[QuantGroup]:
    if not fields.config_groups:
        return _groups_of_other_tool(fields)
    return [
        QuantGroup(
            name,
            _args(group.weights),
            _args(group.input_activations),
            group.targets or [],
            format=group.format or fields.format or "",
            own_format=group.format or "",
        )
        for name, group in fields.config_groups.items()
    ]


def _groups_of_other_tool(fields: QuantizationFields) -> list[QuantGroup]:
    """The groups of another tool's config. For an unknown tool, only the bits and the group size
    are read, as one group."""
    method = fields.quant_method
    stored = format_of_method(method)
    if method is not None and stored is not None:
        return stored.read_groups(method, fields.model_dump())
    bits = fields.bits or fields.w_bit or 0
    size = fields.group_size or fields.q_group_size or 0
    if not bits and size <= 0:
        return []
    weights = QuantArgs("", bits, "group", size) if size > 0 else QuantArgs("", bits, "channel")
    return [QuantGroup(method or "", weights)]


def _args(fields: _Args | None) -> QuantArgs | None:
    """The typed arguments, with compressed-tensors' defaults for missing fields."""
    if fields is None:
        return None
    size = fields.group_size
    inferred = "tensor" if size is None else "group" if size > 0 else "channel"
    scales = LOCAL if fields.dynamic == LOCAL else DYNAMIC if fields.dynamic else STATIC
    return QuantArgs(
        type=(fields.type or INT).lower(),
        bits=fields.num_bits or DEFAULT_BITS,
        strategy=(fields.strategy or inferred).lower(),
        group_size=size if size is not None and size > 0 else None,
        block_structure=_block(fields.block_structure),
        symmetric=fields.symmetric is not False,
        scales=scales,
        scale_type=_scale_type((fields.model_extra or {}).get("scale_dtype")),
    )


def _block(value: list[int] | str | None) -> list[int] | None:
    """Older files write 128x128."""
    return [int(size) for size in value.split("x")] if isinstance(value, str) else value


def _scale_type(value: object) -> str | None:
    return SCALE_TYPES.get(str(value), str(value)) if value else None
