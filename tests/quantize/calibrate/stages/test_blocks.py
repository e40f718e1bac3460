"""The blocks of a decoder layer are found by what its modules read and return."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from quantize.calibrate.stages.blocks import Block, blocks_of, recorded_calls

SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "vocab_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0,
}  # fmt: skip
ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
MLP = ("mlp.gate_proj", "mlp.up_proj")
PLAIN = [
    Block("self_attn", ATTENTION, "self_attn.o_proj", "input_layernorm", 1),
    Block("mlp", MLP, "mlp.down_proj", "post_attention_layernorm", None),
]


def model_of(kind: str, **options: Any) -> Any:
    config = AutoConfig.for_model(kind, **SIZES, **options)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


def blocks(model: Any, hooked: list[torch.nn.Module] | None = None) -> list[Block]:
    """`hooked`: by default all linear layers."""
    layer = model.model.layers[0]
    linears = [module for module in layer.modules() if isinstance(module, torch.nn.Linear)]
    with torch.no_grad(), recorded_calls(layer) as calls:
        model(torch.arange(12).unsqueeze(0))
    return blocks_of(layer, calls, linears if hooked is None else hooked)


@pytest.mark.parametrize("kind", ["qwen3", "llama", "mistral", "qwen2"])
def test_attention_and_mlp(kind: str) -> None:
    assert blocks(model_of(kind)) == PLAIN


def test_norms_behind_the_blocks() -> None:
    """Gemma 2 also has a norm behind each block."""
    found = blocks(model_of("gemma2"))
    assert [block.feeder for block in found] == ["input_layernorm", "pre_feedforward_layernorm"]


def test_fused_projections() -> None:
    found = blocks(model_of("phi3"))
    assert [block.entries for block in found] == [("self_attn.qkv_proj",), ("mlp.gate_up_proj",)]


def test_a_smoothed_norm_belongs_to_its_block() -> None:
    model = model_of("llama")
    layer = model.model.layers[0]
    linears = [module for module in layer.modules() if isinstance(module, torch.nn.Linear)]
    assert blocks(model, [*linears, layer.input_layernorm]) == PLAIN
    inner = torch.nn.Identity()
    layer.mlp.act_fn = torch.nn.Sequential(layer.mlp.act_fn, inner)
    assert blocks(model, [*linears, inner]) == []


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("cohere", {}),  # attention and MLP read the same norm
        ("opt", {"ffn_dim": 96, "word_embed_proj_dim": 64, "do_layer_norm_before": True}),
    ],
)
def test_other_layers_have_none(kind: str, options: dict[str, Any]) -> None:
    model = model_of(kind, **options)
    if kind == "opt":
        model.model.layers = model.model.decoder.layers
    assert blocks(model) == []


class Experts(torch.nn.Module):
    """Two experts, for one half of the tokens each."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(2))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        halves = zip(self.experts, hidden.chunk(2, 1), strict=True)
        return torch.cat([expert(half) for expert, half in halves], 1)


def test_a_mixture_of_experts_has_none() -> None:
    model = model_of("llama")
    model.model.layers[0].mlp = Experts()
    assert blocks(model) == []


def test_a_layer_of_which_only_a_part_is_read_has_none() -> None:
    model = model_of("llama")
    attention = model.model.layers[0].self_attn
    assert blocks(model, [attention.q_proj, attention.k_proj, attention.v_proj]) == []
    assert len(blocks(model, [attention.q_proj, attention.o_proj])) == 1
