"""How many calibration tokens the routers sent to each expert.

Every expert is calibrated on all tokens, also on those that its router sends elsewhere. An expert
that got few tokens of its own is calibrated for inputs that it hardly sees when it is served.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any

import torch

from conf.errors import gate_failed
from conf.terminal import listed
from quantize.models.experts import LinearExperts
from quantize.parallel.ranks import RANKS

ExpertTokens = dict[str, list[int]]
"""Tokens of each expert, by the name of the layer's experts."""
LISTED = 4  # experts that a message names before it counts the rest


@contextmanager
def counted_tokens(modules: Mapping[str, torch.nn.Module], counts: ExpertTokens) -> Iterator[None]:
    """Counts the tokens that experts among these modules are chosen for. Writes to `counts` when it
    ends: until then the sums stay on the device."""
    sums: dict[str, torch.Tensor] = {}
    with ExitStack() as hooks:
        for name, module in modules.items():
            if isinstance(module, LinearExperts):
                hook = _counter(name, sums)
                hooks.callback(module.register_forward_pre_hook(hook).remove)
        yield
    counts |= {name: RANKS.get().sum(tokens).tolist() for name, tokens in sums.items()}


def _counter(name: str, sums: dict[str, torch.Tensor]) -> Any:
    def count(experts: Any, args: tuple[torch.Tensor, ...]) -> None:
        chosen = args[1]
        tokens = torch.bincount(chosen.flatten(), minlength=len(experts))
        sums[name] = sums[name] + tokens if name in sums else tokens

    return count


def check_expert_tokens(counts: ExpertTokens, least: int, quantized: set[str]) -> None:
    """Raises if an expert that the recipe quantizes got fewer tokens than `least`."""
    starved = [
        f"{name}.{number} ({tokens})"
        for name, of_layer in counts.items()
        for number, tokens in enumerate(of_layer)
        if tokens < least and any(module.startswith(f"{name}.{number}.") for module in quantized)
    ]
    if starved:
        experts = sum(map(len, counts.values()))
        raise gate_failed(
            f"{len(starved)} of {experts} experts were chosen for fewer than {least} calibration "
            f"tokens: {listed(starved, LISTED)}; use more or more varied text "
            f"(calibration.samples, calibration=...), or lower min_expert_tokens={least}. "
            "Finished layers are kept: with a lower limit the run goes on from them"
        )


def token_summary(counts: ExpertTokens) -> str:
    """One line for the user."""
    fewest, name = min(
        (tokens, f"{layer}.{number}")
        for layer, of_layer in counts.items()
        for number, tokens in enumerate(of_layer)
    )
    tokens = [each for of_layer in counts.values() for each in of_layer]
    return f"{len(tokens)} experts: {fewest:,} to {max(tokens):,} calibration tokens each, " + (
        f"median {median(tokens):,.0f}, fewest in {name}"
    )
