"""The fields of a model's config.json that decide what it computes, with types and ranges.

Fields that are not named here are checked by transformers, when the architecture is built.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from conf.files.json_files import JsonObject

Size = Annotated[int, Field(ge=1, le=2**31)]
Sizes = Size | Annotated[list[Size], Field(min_length=1)]
Layers = Annotated[int, Field(ge=1, le=10_000)]
Experts = Annotated[int, Field(ge=0, le=10_000)]
Epsilon = Annotated[float, Field(gt=0, le=0.1)]
Positive = Annotated[float, Field(gt=0, lt=1e12)]
Share = Annotated[float, Field(ge=0, le=1)]
Token = Annotated[int, Field(ge=-1, le=2**31)]
DTYPES = ("float32", "float16", "bfloat16", "float64", "float", "half", "auto")
ROPE_KEYS = ("rope_parameters", "rope_scaling")


class Rope(BaseModel):
    """How positions are encoded; some models have one of these for each type of layer."""

    model_config = ConfigDict(strict=True, extra="allow")
    rope_type: str | None = None
    type: str | None = None
    rope_theta: Positive | None = None
    factor: Positive | None = None
    partial_rotary_factor: Annotated[float, Field(gt=0, le=1)] | None = None
    original_max_position_embeddings: Size | None = None
    low_freq_factor: Positive | None = None
    high_freq_factor: Positive | None = None
    beta_fast: Positive | None = None
    beta_slow: Positive | None = None
    attention_factor: Positive | None = None
    short_factor: list[Positive] | None = None
    long_factor: list[Positive] | None = None


class Fields(BaseModel):
    """One level of config.json: the model itself, or its text part."""

    model_config = ConfigDict(strict=True, extra="allow")
    model_type: Annotated[str, Field(min_length=1)] | None = None
    architectures: list[str] | None = None
    hidden_size: Sizes | None = None
    num_hidden_layers: Layers | None = None
    num_attention_heads: Sizes | None = None
    num_key_value_heads: Sizes | None = None
    head_dim: Sizes | None = None
    intermediate_size: Sizes | None = None
    vocab_size: Size | None = None
    max_position_embeddings: Size | None = None
    num_experts: Experts | None = None
    num_local_experts: Experts | None = None
    n_routed_experts: Experts | None = None
    kv_lora_rank: Size | None = None
    qk_rope_head_dim: Annotated[int, Field(ge=0)] | None = None
    sliding_window: int | None = None
    layer_types: list[str] | None = None
    hidden_act: str | None = None
    rms_norm_eps: Epsilon | None = None
    layer_norm_eps: Epsilon | None = None
    layer_norm_epsilon: Epsilon | None = None
    norm_eps: Epsilon | None = None
    rope_theta: Positive | None = None
    rope_parameters: Rope | dict[str, Rope | None] | None = None
    rope_scaling: Rope | dict[str, Rope | None] | None = None
    partial_rotary_factor: Annotated[float, Field(gt=0, le=1)] | None = None
    attention_dropout: Share | None = None
    attention_bias: bool | None = None
    tie_word_embeddings: bool | None = None
    use_sliding_window: bool | None = None
    bos_token_id: Token | None = None
    eos_token_id: Token | list[Token] | None = None
    pad_token_id: Token | None = None
    dtype: str | dict[str, str] | None = None
    torch_dtype: str | dict[str, str] | None = None
    text_config: JsonObject | None = None

    @model_validator(mode="after")
    def _check_consistency(self) -> "Fields":
        for name in ("dtype", "torch_dtype"):
            value = getattr(self, name)
            if isinstance(value, str) and value.removeprefix("torch.") not in DTYPES:
                raise ValueError(f"{name} is {value!r}, choose one of {', '.join(DTYPES)}")
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads
        if isinstance(heads, int) and isinstance(kv_heads, int) and heads % kv_heads:
            raise ValueError(
                f"num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}"
            )
        width, has_head_width = self.hidden_size, bool(self.head_dim or self.kv_lora_rank)
        if (
            not has_head_width
            and isinstance(heads, int)
            and isinstance(width, int)
            and width % heads
        ):
            raise ValueError(f"hidden_size {width} cannot be split into {heads} heads")
        return self
