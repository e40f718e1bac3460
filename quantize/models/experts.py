"""Mixtures of experts with one linear layer for each product of each expert.

transformers keeps all experts of a layer in two three-dimensional parameters. No recipe's pattern
matches those, and no hook sees their inputs. Checkpoints on the hub, and vLLM's loaders, have one
tensor for each product of each expert instead: `mlp.experts.3.gate_proj.weight`. Inside
`linear_experts`, transformers builds, loads and saves models in that layout, and modules have the
names that tensors have in the files.
"""

import functools
import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from compressed_tensors.utils import patch_attr
from llmcompressor.modeling.moe import context
from transformers import conversion_mapping
from transformers.activations import ACT2FN

from conf.mixture import MIXTURES, MixtureNames

Activation = Callable[[torch.Tensor], torch.Tensor]

BLOCK = "mlp"  # transformers' name for the block with router and experts


class FusedFamily(NamedTuple):
    """Where transformers has a family's classes."""

    module: str
    experts: str
    """The class of a layer's experts."""
    layer: str | None = None
    """The class of a decoder layer, where the files name its block otherwise than `mlp`."""


FUSED_CLASSES = {
    "mixtral": FusedFamily(
        "transformers.models.mixtral.modeling_mixtral", "MixtralExperts", "MixtralDecoderLayer"
    ),
    "qwen2_moe": FusedFamily("transformers.models.qwen2_moe.modeling_qwen2_moe", "Qwen2MoeExperts"),
    "qwen3_moe": FusedFamily("transformers.models.qwen3_moe.modeling_qwen3_moe", "Qwen3MoeExperts"),
}
"""By model type."""


class Expert(torch.nn.Module):  # type: ignore[misc]
    """One expert: a gated MLP."""

    def __init__(
        self, hidden: int, width: int, activation: Activation, names: MixtureNames
    ) -> None:
        super().__init__()
        self.add_module(names.gate, torch.nn.Linear(hidden, width, bias=False))
        self.add_module(names.up, torch.nn.Linear(hidden, width, bias=False))
        self.add_module(names.down, torch.nn.Linear(width, hidden, bias=False))
        self._activation, self._names = activation, names

    @property
    def gate(self) -> torch.nn.Linear:
        return self._modules[self._names.gate]

    @property
    def up(self) -> torch.nn.Linear:
        return self._modules[self._names.up]

    @property
    def down(self) -> torch.nn.Linear:
        return self._modules[self._names.down]

    def inside(self, tokens: torch.Tensor) -> torch.Tensor:
        """What the last product reads."""
        gated: torch.Tensor = self._activation(self.gate(tokens)) * self.up(tokens)
        return gated

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.down(self.inside(tokens))
        return output


class LinearExperts(torch.nn.ModuleList):  # type: ignore[misc]
    """The experts of one layer. Takes the place of transformers' class, and computes the same."""

    def __init__(self, config: Any) -> None:
        activation = ACT2FN[config.hidden_act].forward  # as a module it would be one of the experts
        names = MIXTURES[config.model_type]
        sizes = config.hidden_size, getattr(config, names.width)
        experts = (Expert(*sizes, activation, names) for _ in range(config.num_experts))
        # Weights are loaded, or never there; initializing thousands of layers would take a minute.
        with patch_attr(torch.nn.Linear, "reset_parameters", lambda _: None):
            super().__init__(experts)

    def forward(
        self, tokens: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor
    ) -> torch.Tensor:
        """`chosen`, `shares`: for each token its experts and their weights in the sum. While
        llm-compressor calibrates, every expert is run on all tokens, so that its hooks see them
        all; the sum still has only the chosen ones."""
        total = torch.zeros_like(tokens)
        runs_all = context.get_calibrate_all_experts_flag()
        # Modules that read the same tokens come one after the other: they share one X'X.
        inside = [expert.inside(tokens) for expert in self] if runs_all else []
        for number, expert in enumerate(self):
            rows, places = torch.where(chosen == number)
            if runs_all:
                output = expert.down(inside.pop(0))[rows]
            elif len(rows):
                output = expert(tokens[rows])
            else:
                continue
            weighted = output * shares[rows, places, None]
            total.index_add_(0, rows, weighted.to(total.dtype))
        return total


@contextmanager
def only_chosen_experts() -> Iterator[None]:
    """Within a calibration, for a pass in which no hook reads: experts run only on their own
    tokens, which gives the same sum."""
    with patch_attr(context, "_CALIBRATE_ALL_EXPERTS", False):
        yield


class _InPlaceOfFused:
    """Stands for transformers' class: it makes `LinearExperts`, which are no instances of it, so
    that transformers does not initialize its own parameters in them."""

    def __new__(cls, config: Any) -> Any:
        return LinearExperts(config)


@functools.cache
def _with_block(layer: type[torch.nn.Module], block: str) -> type[torch.nn.Module]:
    """A decoder layer whose block with the experts has another name. llm-compressor finds layers by
    the class's name, which stays."""

    def init(self: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        layer.__init__(self, *args, **kwargs)
        modules = list(self._modules.items())
        self._modules.clear()
        self._modules.update((block if name == BLOCK else name, each) for name, each in modules)

    forward_name = property(lambda self: self._modules[block])
    return type(layer.__name__, (layer,), {"__init__": init, BLOCK: forward_name})


@contextmanager
def linear_experts(model_type: str) -> Iterator[None]:
    """transformers builds, loads and saves this family with `LinearExperts`. Other families, and
    models that are used after it, are as they were."""
    if model_type not in FUSED_CLASSES:
        yield
        return
    family = FUSED_CLASSES[model_type]
    stored_layout = conversion_mapping.get_checkpoint_conversion_mapping(model_type)
    # Not by transformers' register_patch_mapping: that one imports every model, also those that
    # need torchvision.
    with ExitStack() as stack:
        module = importlib.import_module(family.module)
        stack.enter_context(patch_attr(module, family.experts, _InPlaceOfFused))
        if family.layer is not None:
            layer = _with_block(getattr(module, family.layer), MIXTURES[model_type].block)
            stack.enter_context(patch_attr(module, family.layer, layer))
        _register_layout(model_type, [])  # names and shapes in the files are the modules' own
        try:
            yield
        finally:
            _register_layout(model_type, stored_layout)


def _register_layout(model_type: str, layout: Any) -> None:
    conversion_mapping.register_checkpoint_conversion_mapping(model_type, layout, overwrite=True)


def experts_of(model: torch.nn.Module) -> dict[str, LinearExperts]:
    """The experts of each layer, by name."""
    return {
        name: module for name, module in model.named_modules() if isinstance(module, LinearExperts)
    }
