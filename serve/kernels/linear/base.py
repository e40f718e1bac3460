"""What our kernel classes share: they load a layer, and multiply with ours or with vLLM's own."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from serve.kernels.linear.loading import (
    LayerKind,
    LoadedLayer,
    Rounding,
    is_loaded,
    load_or_leave,
    multiply,
)
from serve.kernels.products.product import Weight


class QuantlineLinear:
    """Comes before vLLM's interface among the bases of a class."""

    vllms: Any
    """vLLM's own kernel, for layers that are left to it."""
    loaded: LoadedLayer | None = None

    def load(
        self,
        layer: torch.nn.Module,
        kind: LayerKind,
        weight_of: Callable[[], Weight],
        stored_names: Sequence[str],
        dtype: torch.dtype,
    ) -> None:
        """Loads a layer once. The first of the stored names is that of its codes."""
        if is_loaded(self.loaded, getattr(layer, stored_names[0])):
            return
        self.loaded = load_or_leave(layer, kind, weight_of, stored_names, dtype)
        if self.loaded is None:
            self.vllms.process_weights_after_loading(layer)

    def rounding(self, layer: torch.nn.Module) -> Rounding | None:
        """How the layer's activations are rounded; None where the format rounds none."""
        return None

    def apply_weights(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        if self.loaded is None:
            product: torch.Tensor = self.vllms.apply_weights(layer, x, bias)
            return product
        product = multiply(layer, self.loaded, x, self.rounding(layer))
        return product if bias is None else product + bias
