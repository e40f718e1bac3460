"""Which models calibrate with SDPA, and that it changes nothing."""

from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from quantize.calibrate.attention import fast_attention

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
CAUSAL = {
    "llama": LlamaConfig(**SIZES),
    "qwen3": Qwen3Config(**SIZES),
    "a window that is not used": Qwen2Config(**SIZES, use_sliding_window=False, sliding_window=4),
    "no window": MistralConfig(**SIZES, sliding_window=None),
}
OTHERS = {
    "soft-capping": Gemma2Config(
        **SIZES, query_pre_attn_scalar=8, layer_types=["full_attention"] * 2
    ),
    "sliding windows in some layers": Gemma2Config(
        **SIZES, query_pre_attn_scalar=8, attn_logit_softcapping=None
    ),
    "sliding windows": MistralConfig(**SIZES, sliding_window=4),
    "a window in later layers": Qwen2Config(
        **SIZES, use_sliding_window=True, sliding_window=4, max_window_layers=1
    ),
    "sinks": GptOssConfig(
        **SIZES, num_local_experts=2, num_experts_per_tok=1, layer_types=["full_attention"] * 2
    ),
}


def model_of(config: PretrainedConfig) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()


def batch(padding: int = 0) -> dict[str, torch.Tensor]:
    tokens = torch.randint(1, 64, (2, 12), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(tokens)
    mask[0, :padding] = 0
    return {"input_ids": tokens, "attention_mask": mask}


def implementation(model: Any, batches: list[dict[str, torch.Tensor]]) -> str:
    with fast_attention(model, batches):
        return str(model.model.layers[0].self_attn.config._attn_implementation)


@pytest.mark.parametrize("name", CAUSAL)
def test_causal_attention_runs_on_sdpa_with_the_same_outputs(name: str) -> None:
    model = model_of(CAUSAL[name])
    assert implementation(model, [batch()]) == "sdpa"
    with torch.no_grad():
        eager = model(**batch()).logits
        with fast_attention(model, [batch()]):
            fast = model(**batch()).logits
    assert torch.allclose(fast, eager, atol=1e-5)
    assert model.config._attn_implementation == "eager"


@pytest.mark.parametrize("name", OTHERS)
def test_other_attention_stays_eager(name: str) -> None:
    assert implementation(model_of(OTHERS[name]), [batch()]) == "eager"


def test_padding_stays_eager() -> None:
    assert implementation(model_of(CAUSAL["llama"]), [batch(), batch(padding=3)]) == "eager"


def test_no_weight_is_read_to_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    """To read an offloaded weight would load it onto the GPU, one by one the whole model."""
    model = model_of(CAUSAL["llama"])

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a weight was read")

    monkeypatch.setattr(torch.nn.Module, "named_parameters", refuse)
    monkeypatch.setattr(torch.nn.Module, "parameters", refuse)
    assert implementation(model, [batch()]) == "sdpa"
