"""The reloaded checkpoint against the model in memory: do they answer alike?"""

from typing import Any

import torch

PROBE_TOKENS = 64
LOWEST_TOKEN = 16  # below lie special tokens


def probe_logits(model: Any) -> torch.Tensor:
    """The logits on a fixed run of tokens, spread over the vocabulary."""
    step = max(1, (model.config.vocab_size - LOWEST_TOKEN) // PROBE_TOKENS)
    tokens = torch.arange(LOWEST_TOKEN, LOWEST_TOKEN + step * PROBE_TOKENS, step)
    with torch.no_grad():
        logits: torch.Tensor = model(tokens.unsqueeze(0).to(model.device)).logits
    return logits.float().cpu()


def closeness(one: torch.Tensor, other: torch.Tensor) -> float:
    """Mean Kullback-Leibler divergence of the next-token distributions."""
    divergence = torch.nn.functional.kl_div(
        other.log_softmax(-1), one.log_softmax(-1), log_target=True, reduction="none"
    )
    return float(divergence.sum(-1).mean())
