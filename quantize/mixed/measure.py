"""Measures how far the next token is from the original's where modules are rounded plainly."""

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from compressed_tensors.utils import patch_attr

from conf.schema.mixed import LayerFormat
from quantize.calibrate.batches import Tokens, batches
from quantize.mixed.rounding import round_tokens, round_weight
from quantize.steps.base.formats import quantization_args

Formats = Mapping[torch.nn.Linear, LayerFormat]
BATCH = 4  # sequences whose predictions for the whole vocabulary are held at once


class Original:
    """The original model and its predictions on a few sequences."""

    def __init__(self, model: Any, samples: list[Tokens]) -> None:
        self.model = model
        self.batches = [batch["input_ids"].to(model.device) for batch in batches(samples, BATCH)]
        self.likelihoods: list[torch.Tensor] = []
        """Of every next token, by batch."""
        self.entropies: list[torch.Tensor] = []
        for batch in self.batches:
            logits = self._logits(batch)
            self.likelihoods.append(logits.softmax(-1))
            self.entropies.append(_cross_entropy(self.likelihoods[-1], logits))

    def divergence(self, formats: Formats) -> float:
        """The mean divergence of the next token with modules in these formats."""
        total = 0.0
        with rounded(formats):
            for number, batch in enumerate(self.batches):
                crossed = _cross_entropy(self.likelihoods[number], self._logits(batch))
                total += float((crossed - self.entropies[number]).double().sum())
        tokens: int = sum(batch.numel() for batch in self.batches)
        return math.inf if math.isnan(total) else max(0.0, total / tokens)

    def _logits(self, batch: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            logits: torch.Tensor = self.model(batch, use_cache=False).logits
        return logits.float()


def _cross_entropy(likelihoods: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """At every position. The divergence is what it has above that of the original's own logits;
    computed so, it takes two passes over the vocabulary and not six."""
    return logits.logsumexp(-1) - (likelihoods * logits).sum(-1)


@contextmanager
def rounded(formats: Formats) -> Iterator[None]:
    """Modules that multiply as if they were stored in these formats."""
    with ExitStack() as patches:
        for module, layer_format in formats.items():
            if layer_format.weights is not None:
                forward = partial(_rounded_product, module, layer_format)
                patches.enter_context(patch_attr(module, "forward", forward))
        yield


def _rounded_product(
    module: torch.nn.Linear, layer_format: LayerFormat, inputs: torch.Tensor
) -> torch.Tensor:
    assert layer_format.weights is not None
    weight = round_weight(module.weight, quantization_args(layer_format.weights))
    if layer_format.activations is not None:
        inputs = round_tokens(inputs, quantization_args(layer_format.activations))
    return torch.nn.functional.linear(inputs, weight, module.bias)
