"""Compares the next tokens of two models: a reloaded checkpoint and the model in memory."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from compressed_tensors.offload import disable_offloading

PROBE_TOKENS = 64
LOWEST_TOKEN = 16  # lower ones are special tokens


def probe_logits(model: Any) -> torch.Tensor:
    """The logits on a fixed sequence of tokens, spread over the vocabulary."""
    config = model.config.get_text_config()
    step = max(1, (config.vocab_size - LOWEST_TOKEN) // PROBE_TOKENS)
    tokens = torch.arange(LOWEST_TOKEN, LOWEST_TOKEN + step * PROBE_TOKENS, step)
    longest = getattr(config, "max_position_embeddings", None) or PROBE_TOKENS
    tokens = tokens[:longest] % config.vocab_size
    with torch.no_grad(), weights_held(model):
        logits: torch.Tensor = model(tokens.unsqueeze(0).to(model.device)).logits
    return logits.float().cpu()


@contextmanager
def weights_held(model: torch.nn.Module) -> Iterator[None]:
    """Makes every layer fetch its weight only once in a forward pass.

    compressed-tensors rounds the weight that it fetched. A layer whose weight is on the host would
    then fetch another, unrounded copy, and the model in memory would seem to lose nothing.
    """
    held_weights = ExitStack()

    def hold(module: Any, inputs: Any) -> None:
        held_weights.enter_context(disable_offloading())

    def release(module: Any, inputs: Any, output: Any) -> None:
        held_weights.close()

    with ExitStack() as hooks:
        for module in model.modules():
            if hasattr(module, "quantization_scheme"):
                hooks.callback(module.register_forward_pre_hook(hold).remove)
                hooks.callback(module.register_forward_hook(release).remove)
        with held_weights:
            yield


def mean_divergence(reference: torch.Tensor, compared: torch.Tensor) -> float:
    """Mean Kullback-Leibler divergence of the next-token distributions."""
    divergence = torch.nn.functional.kl_div(
        compared.log_softmax(-1), reference.log_softmax(-1), log_target=True, reduction="none"
    )
    return float(divergence.sum(-1).mean())
