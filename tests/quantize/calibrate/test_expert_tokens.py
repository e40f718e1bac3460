"""Counting the calibration tokens of each expert, and the gate for experts that got too few."""

import pytest
import torch
from transformers import Qwen3MoeConfig

from conf.errors import GATE_FAILED, QuantlineError
from quantize.calibrate.expert_tokens import (
    ExpertTokens,
    check_expert_tokens,
    counted_tokens,
    token_summary,
)
from quantize.models.experts import LinearExperts

COUNTS = {"layers.0.mlp.experts": [5, 0, 12], "layers.1.mlp.experts": [6, 6, 5]}
QUANTIZED = {
    f"{layer}.{number}.{name}"
    for layer in COUNTS
    for number in range(3)
    for name in ("gate_proj", "up_proj", "down_proj")
}


def test_tokens_are_counted_over_batches_by_the_routers_choice() -> None:
    config = Qwen3MoeConfig(hidden_size=8, moe_intermediate_size=4, num_experts=4)
    experts = LinearExperts(config)
    counts: ExpertTokens = {}
    tokens, shares = torch.ones(3, 8), torch.full((3, 2), 0.5)
    modules = {"m.experts": experts, "m.other": torch.nn.Linear(2, 2)}
    with torch.no_grad(), counted_tokens(modules, counts):
        experts(tokens, torch.tensor([[0, 1], [0, 2], [1, 0]]), shares)
        experts(tokens, torch.tensor([[0, 1], [1, 0], [1, 0]]), shares)
    assert counts == {"m.experts": [6, 5, 1, 0]}
    with torch.no_grad():
        experts(tokens, torch.tensor([[3, 1], [3, 0], [3, 0]]), shares)
    assert counts == {"m.experts": [6, 5, 1, 0]}


@pytest.mark.parametrize(
    ("least", "message"),
    [
        (1, r"1 of 6 experts .* fewer than 1 .*: layers.0.mlp.experts.1 \(0\); .*_tokens=1"),
        (6, r"3 of 6 experts .* layers.0.mlp.experts.0 \(5\), .*experts.1 \(0\)"),
    ],
)
def test_experts_with_too_few_tokens_fail_the_gate(least: int, message: str) -> None:
    with pytest.raises(QuantlineError, match=message) as error:
        check_expert_tokens(COUNTS, least, QUANTIZED)
    assert error.value.exit_code == GATE_FAILED


def test_experts_that_are_not_quantized_do_not_count() -> None:
    check_expert_tokens(COUNTS, 0, QUANTIZED)
    others = {name for name in QUANTIZED if not name.startswith("layers.0.mlp.experts.1.")}
    check_expert_tokens(COUNTS, 1, others)
    with pytest.raises(QuantlineError):
        check_expert_tokens(COUNTS, 6, others)


def test_the_summary_names_the_expert_with_the_fewest_tokens() -> None:
    expected = "6 experts: 0 to 12 calibration tokens each, median 6, fewest in "
    assert token_summary(COUNTS) == expected + "layers.0.mlp.experts.1"
