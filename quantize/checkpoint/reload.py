"""Compares the next tokens of two models: a reloaded checkpoint and the model in memory."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from compressed_tensors.offload import disable_offloading
from compressed_tensors.quantization.lifecycle import forward
from compressed_tensors.utils import patch_attr

from quantize.checkpoint.rounding import rounded_in_float32

PROBE_TOKENS = 64
LOWEST_TOKEN = 16  # lower ones are special tokens
# Activations with fewer bits are not rounded in a probe. Their steps are so wide that a difference
# in the last bit of a stored tensor grows from layer to layer: the divergence of NVFP4 on SmolLM2
# 135M is 0.34 with them rounded, as if a tensor were wrong, and 0.0001 without.
FEWEST_ROUNDED_BITS = 8
ACTIVATION_SCALES = ("input_scale", "input_global_scale")
MOST_SCALE_ERROR = 0.01  # relative; a file may hold a scale in 16 bit


@dataclass(frozen=True)
class Probe:
    """What two models must share to be the same."""

    logits: torch.Tensor
    """On a fixed sequence of tokens."""
    scales: dict[str, torch.Tensor]
    """Those of the activations that the logits were computed without rounding."""


def probe(model: Any) -> Probe:
    """Asks a model, and reads what the answer does not depend on."""
    scales = {
        f"{name}.{scale}": getattr(module, scale).detach().float().flatten().cpu()
        for name, module in model.named_modules()
        if _has_coarse_activations(module)
        for scale in ACTIVATION_SCALES
        if getattr(module, scale, None) is not None
    }
    return Probe(probe_logits(model), scales)


def _has_coarse_activations(module: Any) -> bool:
    activations = getattr(getattr(module, "quantization_scheme", None), "input_activations", None)
    return activations is not None and activations.num_bits < FEWEST_ROUNDED_BITS


def differing_scales(reference: Probe, compared: Probe) -> list[str]:
    """The scales that one of the two does not have, or has with another value."""
    return [
        name
        for name in sorted(reference.scales.keys() | compared.scales.keys())
        if not _is_close(reference.scales.get(name), compared.scales.get(name))
    ]


def _is_close(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None or one.shape != other.shape:
        return False
    return bool(torch.allclose(one, other, rtol=MOST_SCALE_ERROR, atol=0))


def probe_logits(model: Any) -> torch.Tensor:
    """The logits on a fixed sequence of tokens, spread over the vocabulary."""
    config = model.config.get_text_config()
    step = max(1, (config.vocab_size - LOWEST_TOKEN) // PROBE_TOKENS)
    tokens = torch.arange(LOWEST_TOKEN, LOWEST_TOKEN + step * PROBE_TOKENS, step)
    longest = getattr(config, "max_position_embeddings", None) or PROBE_TOKENS
    tokens = tokens[:longest] % config.vocab_size
    with torch.no_grad(), weights_held(model), coarse_activations_kept(), rounded_in_float32():
        logits: torch.Tensor = model(tokens.unsqueeze(0).to(model.device)).logits
    return logits.float().cpu()


@contextmanager
def coarse_activations_kept() -> Iterator[None]:
    """Makes compressed-tensors leave activations of few bits as they are."""
    round_all = forward.forward_quantize

    def round_others(module: Any, value: torch.Tensor, base_name: str, args: Any) -> torch.Tensor:
        if base_name != "weight" and args.num_bits < FEWEST_ROUNDED_BITS:
            return value
        rounded: torch.Tensor = round_all(module, value, base_name, args)
        return rounded

    with patch_attr(forward, "forward_quantize", round_others):
        yield


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
    """Mean Kullback-Leibler divergence of the next-token distributions; NaN if one of them is."""
    divergence = torch.nn.functional.kl_div(
        compared.log_softmax(-1), reference.log_softmax(-1), log_target=True, reduction="none"
    )
    return float(divergence.sum(-1).clamp(min=0).mean())  # sums of rounded terms may be below 0
