"""What modules read, and how strongly the next token depends on what they give.

An error d of a module's output makes the next token diverge by half the mean of (g d)^2, while the
error is small. g is the gradient of the log-likelihood of a token that is drawn from the model's
own prediction (Fisher information).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from compressed_tensors.utils import patch_attr
from torch.utils.checkpoint import checkpoint

SEED = 0


class Gradients:
    """The inputs of modules and the gradients at their outputs, token by token."""

    def __init__(self) -> None:
        self._inputs: dict[torch.nn.Module, list[torch.Tensor]] = defaultdict(list)
        self._gradients: dict[torch.nn.Module, list[torch.Tensor]] = defaultdict(list)

    def of(self, module: torch.nn.Linear) -> tuple[torch.Tensor, torch.Tensor] | None:
        """[tokens, inputs] and [tokens, outputs]; none of an expert that no token visits."""
        if module not in self._inputs:
            return None
        return torch.cat(self._inputs[module]), torch.cat(self._gradients[module])

    def watch(
        self, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor
    ) -> None:
        """A forward hook."""
        if output.requires_grad:
            output.register_hook(partial(self._add, module, inputs[0].detach()))

    def _add(self, module: torch.nn.Module, inputs: torch.Tensor, gradient: torch.Tensor) -> None:
        self._inputs[module].append(inputs.flatten(0, -2))
        self._gradients[module].append(gradient.detach().flatten(0, -2))


def gradients_of(
    model: Any, modules: Iterable[torch.nn.Linear], batches: Iterable[torch.Tensor]
) -> Gradients:
    """On the text of these batches. Each decoder layer is computed again on the way back, so that
    only one holds its activations, and its weights where they lie on the host."""
    gradients = Gradients()
    generator = torch.Generator(model.device).manual_seed(SEED)
    with ExitStack() as changes:
        changes.enter_context(_constant(model.parameters()))
        changes.enter_context(torch.enable_grad())
        for block in _decoder_blocks(model):
            again = partial(checkpoint, block.forward, use_reentrant=False)
            changes.enter_context(patch_attr(block, "forward", again))
        for module in modules:
            changes.callback(module.register_forward_hook(gradients.watch).remove)
        for batch in batches:
            _drawn_likelihood(model, batch, generator).backward()
    return gradients


def _drawn_likelihood(model: Any, batch: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The sum of the log-likelihoods of tokens drawn from the model's own predictions."""
    embedded = model.get_input_embeddings()(batch).detach().requires_grad_()
    logits = model(inputs_embeds=embedded, use_cache=False).logits.float().flatten(0, -2)
    drawn = torch.multinomial(logits.detach().softmax(-1), 1, generator=generator)
    return (logits.gather(-1, drawn).squeeze(-1) - logits.logsumexp(-1)).sum()


def _decoder_blocks(model: Any) -> list[torch.nn.Module]:
    """The decoder layers; none where the model has no list of them."""
    layers = getattr(model.get_decoder(), "layers", None)
    return list(layers) if isinstance(layers, torch.nn.ModuleList) else []


@contextmanager
def _constant(parameters: Iterable[torch.nn.Parameter]) -> Iterator[None]:
    """Parameters without gradients of their own."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_()
