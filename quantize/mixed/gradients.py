"""How strongly the next token depends on the outputs of each module: squared gradients.

An error d of a module's output makes the next token diverge by half the mean of (g d)^2, while the
error is small. g is the gradient of the log-likelihood of a token that is drawn from the model's
own prediction (Fisher information). Rounding errors of different outputs are nearly independent, so
the squares of g, output by output, are enough.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from compressed_tensors.utils import patch_attr
from torch.utils.checkpoint import checkpoint

SEED = 0


class SquaredGradients:
    """Of the outputs of modules, as a mean over all tokens that a module has read."""

    def __init__(self) -> None:
        self._sums: dict[torch.nn.Module, torch.Tensor] = {}
        self._tokens: dict[torch.nn.Module, int] = {}

    def of(self, module: torch.nn.Linear) -> torch.Tensor:
        """[outputs]; zeros for an expert that no token visits."""
        if module not in self._sums:
            return torch.zeros(module.out_features, device=module.weight.device)
        return self._sums[module] / self._tokens[module]

    def watch_output(self, module: torch.nn.Module, inputs: Any, output: torch.Tensor) -> None:
        """A forward hook."""
        if output.requires_grad:
            output.register_hook(partial(self._add, module))

    def _add(self, module: torch.nn.Module, gradient: torch.Tensor) -> None:
        by_token = gradient.detach().flatten(0, -2).float()
        squares = by_token.square().sum(0)
        known = self._sums.get(module)
        self._sums[module] = squares if known is None else known + squares
        self._tokens[module] = self._tokens.get(module, 0) + len(by_token)


def squared_gradients(
    model: Any,
    blocks: Iterable[torch.nn.Module],
    modules: Iterable[torch.nn.Linear],
    batches: Iterable[torch.Tensor],
) -> SquaredGradients:
    """`blocks`: the decoder layers. Each is computed again on the way back, so that only one holds
    its activations, and its weights where they lie on the host."""
    gradients = SquaredGradients()
    generator = torch.Generator(model.device).manual_seed(SEED)
    with ExitStack() as changes:
        changes.enter_context(_constant(model.parameters()))
        changes.enter_context(torch.enable_grad())
        for block in blocks:
            again = partial(checkpoint, block.forward, use_reentrant=False)
            changes.enter_context(patch_attr(block, "forward", again))
        for module in modules:
            changes.callback(module.register_forward_hook(gradients.watch_output).remove)
        for batch in batches:
            _drawn_likelihood(model, batch, generator).backward()
    return gradients


def _drawn_likelihood(model: Any, batch: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The sum of the log-likelihoods of tokens drawn from the model's own predictions."""
    embedded = model.get_input_embeddings()(batch).detach().requires_grad_()
    logits = model(inputs_embeds=embedded, use_cache=False).logits.float().flatten(0, -2)
    drawn = torch.multinomial(logits.detach().softmax(-1), 1, generator=generator)
    return (logits.gather(-1, drawn).squeeze(-1) - logits.logsumexp(-1)).sum()


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
