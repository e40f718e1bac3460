"""How a rescaling step and a solving step share one pass.

The solving step sums X'X while the inputs are not yet rescaled. The rescaling step then says by
what factor each input has changed, so that the sums can follow.
"""

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from compressed_tensors.offload import disable_onloading, update_offload_parameter
from llmcompressor.modifiers.utils.hooks import HooksMixin

from quantize.calibrate.solver.block import TINY

PROBES = 16  # tokens by which the factor is measured


@dataclass
class Rescaling:
    """What is rescaled during one pass through the layers."""

    stored_as: torch.dtype
    factors: dict[torch.nn.Module, torch.Tensor] = field(default_factory=dict)
    """The factor of each channel of a module's input since the pass."""

    def rescale(self, modules: Sequence[torch.nn.Module], products: torch.Tensor) -> None:
        """Rescales X'X to the new inputs of modules that share their input."""
        factors = {id(self.factors.get(module)): self.factors.get(module) for module in modules}
        if len(factors) > 1:
            raise RuntimeError("SmoothQuant scales only some of the modules that read one input")
        (factor,) = factors.values()
        if factor is not None:
            products.mul_(factor).mul_(factor[:, None])


SHARED: ContextVar[Rescaling | None] = ContextVar("rescaling", default=None)
"""Set while a rescaling step shares the passes of a solving one."""


@contextlib.contextmanager
def shared_passes(stored_as: torch.dtype, is_shared: bool) -> Iterator[None]:
    """The context of a pass through the layers that steps may share."""
    token = SHARED.set(Rescaling(stored_as) if is_shared else None)
    try:
        yield
    finally:
        SHARED.reset(token)


def round_as_stored(module: torch.nn.Module, stored_as: torch.dtype) -> None:
    """Rounds a norm's weights to the type that they are stored in."""
    for name, parameter in list(module.named_parameters(recurse=False)):
        stored = parameter.data.to(stored_as).to(parameter.dtype)
        update_offload_parameter(module, name, stored)


def round_norms(model: torch.nn.Module, stored_as: torch.dtype) -> None:
    """Rounds rescaled norms and biases to their stored type, so that later steps see the same.

    A model that computes in float32 would otherwise round them after the calibration. For W8A8
    SmolLM2 that caused a divergence of 0.035 between memory and file.
    """
    with disable_onloading():  # otherwise every weight would be copied to the GPU
        vectors = [
            (module, name, parameter.data)
            for module in model.modules()
            for name, parameter in module.named_parameters(recurse=False)
            if parameter.dim() == 1 and "scale" not in name
        ]
    for module, name, vector in vectors:
        update_offload_parameter(module, name, vector.to(stored_as).to(vector.dtype))


def probe(norm: torch.nn.Module) -> torch.Tensor:
    """The norm's output for fixed tokens. In float32 where the module allows it: what its weights
    do is to be seen, not how its output is rounded."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(PROBES, norm.weight.shape[-1], generator=generator)
    with torch.no_grad(), HooksMixin.disable_hooks():
        try:
            return norm(tokens.to(norm.weight.device)).float()
        except RuntimeError:  # torch's own LayerNorm takes only the type of its weights
            return norm(tokens.to(norm.weight)).float()


def factor_between(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """The factor of each channel."""
    return (before * after).sum(0) / before.square().sum(0).clamp_min(TINY)
