"""What rounding does to weights while AWQ tries scales, and the clipping that lowers its error."""

import contextlib
from collections.abc import Iterator

import torch
from compressed_tensors.quantization import QuantizationStrategy, forward_quantize
from compressed_tensors.utils import align_modules, patch_attrs, update_offload_parameter
from llmcompressor.modifiers.quantization.calibration import observe, update_qparams
from llmcompressor.observers.base import Observer
from llmcompressor.observers.helpers import fuse_weight_observers
from torch.nn import Module

from quantize.calibrate.solver.products import tf32_products

Weights = dict[Module, torch.Tensor]
CLIPPING_RATIOS = tuple(1 - step / 20 for step in range(11))  # 1.0 down to 0.5


@contextlib.contextmanager
def minmax_observers(layers: list[Module], parent: Module) -> Iterator[None]:
    """Lets the layers' scales follow the range of the weights, as llm-compressor's search does."""
    observers = [
        Observer.load_from_registry(
            "memoryless_minmax", base_name="weight", args=layer.quantization_scheme.weights
        )
        for layer in layers
    ]
    with patch_attrs(layers, "weight_observer", observers):
        fuse_weight_observers(parent)
        yield


def rounded(weights: Weights) -> Weights:
    """The weights as they are read back from a checkpoint. Overwrites the layers' own weights and
    scales, and needs `minmax_observers`."""
    layers = list(weights)
    for layer, values in weights.items():
        layer.weight.data.copy_(values)
        layer.weight_observer.delete_statistics(check_fused=False)
    observe(layers, "weight")
    update_qparams(layers, "weight", only_update_onload=True)
    return {
        layer: forward_quantize(layer, layer.weight, "weight", layer.quantization_scheme.weights)
        for layer in layers
    }


# ---- clipping ------------------------------------------------------------------------------


def clip(layers: list[Module], parent: Module, blocks: Weights) -> None:
    """Clamps the weights of each group to the share of its largest weight that changes the output
    least. `blocks`: for each layer to be clipped, its `diagonal_blocks`; the other layers take part
    because they may share a global scale."""
    with align_modules(layers), minmax_observers(layers, parent):
        originals = {layer: layer.weight.detach().clone() for layer in layers}
        searches = {
            layer: _ClippingSearch(layer, originals[layer], blocks[layer]) for layer in blocks
        }
        for ratio in CLIPPING_RATIOS:
            clamped = {layer: search.clamped(ratio) for layer, search in searches.items()}
            values = rounded(originals | clamped)
            for layer, search in searches.items():
                search.compare(ratio, values[layer])
        clipped = {layer: search.best() for layer, search in searches.items()}
        for layer, weight in (originals | clipped).items():
            update_offload_parameter(layer, "weight", weight)


class _ClippingSearch:
    """The best clipping ratio so far, for each row and group of one layer."""

    def __init__(self, layer: Module, weight: torch.Tensor, blocks: torch.Tensor) -> None:
        self.blocks = blocks
        self.groups = weight.unflatten(-1, (len(blocks), -1))
        self.largest = self.groups.abs().amax(-1, keepdim=True)
        self.ratios = torch.ones_like(self.largest, dtype=torch.float32)
        self.losses = torch.full_like(self.ratios, torch.inf)
        args = layer.quantization_scheme.weights
        self.has_global_scale = args.strategy == QuantizationStrategy.TENSOR_GROUP

    def clamped(self, ratios: torch.Tensor | float) -> torch.Tensor:
        limits = (self.largest.float() * ratios).to(self.largest.dtype)
        if self.has_global_scale:
            # The largest weight sets the scale of all groups. It stays, so that a group's loss
            # does not depend on how other groups are clipped.
            limits = torch.where(self.largest == self.largest.max(), self.largest, limits)
        return torch.clamp(self.groups, -limits, limits).flatten(-2)

    def compare(self, ratio: float, values: torch.Tensor) -> None:
        losses = self._losses(values)
        is_better = losses < self.losses
        self.losses = torch.where(is_better, losses, self.losses)
        self.ratios = torch.where(is_better, ratio, self.ratios)

    def best(self) -> torch.Tensor:
        return self.clamped(self.ratios)

    def _losses(self, values: torch.Tensor) -> torch.Tensor:
        """The error of each row's output through one group alone; shape (rows, groups, 1)."""
        groups = values.float().unflatten(-1, (len(self.blocks), -1))
        errors = (groups - self.groups.float()).transpose(0, 1)
        with tf32_products():
            return torch.bmm(errors, self.blocks).mul_(errors).sum(-1).t().unsqueeze(-1)


def diagonal_blocks(layer: Module, gram: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The blocks of G that belong to one group each, after the inputs are divided by the scales;
    shape (groups, group size, group size). A channel is one group."""
    size = layer.quantization_scheme.weights.group_size or len(gram)
    size = size if size > 0 else len(gram)
    squares = gram.unflatten(0, (-1, size)).unflatten(-1, (-1, size))
    blocks = squares.diagonal(dim1=0, dim2=2).permute(2, 0, 1)
    by_group = scales.to(gram).unflatten(0, (-1, size))
    return blocks / by_group.unsqueeze(1) / by_group.unsqueeze(2)
