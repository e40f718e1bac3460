"""A linear layer with weights in codebooks, and models with such layers."""

from collections.abc import Mapping

import torch

from conf.files.json_files import JsonObject
from conf.formats.quant_args import Codebooks, QuantGroup
from conf.formats.vptq import FORMAT, METHOD, layer_entry
from quantize.vptq.layer import VectorLayer

TYPES = {"I32": torch.int32, "I16": torch.int16}


class VectorLinear(torch.nn.Module):  # type: ignore[misc]
    """Unpacks its weights at every call. Its tensors have the names of a checkpoint."""

    def __init__(
        self, group: QuantGroup, rows: int, columns: int, bias: bool, dtype: torch.dtype
    ) -> None:
        super().__init__()
        assert group.weights is not None
        assert group.weights.codebooks is not None
        self.codebooks: Codebooks = group.weights.codebooks
        self.out_features, self.in_features = rows, columns
        for name, tensor in FORMAT.tensors(group, rows, columns).items():
            empty = torch.empty(tensor.shapes[0], dtype=TYPES.get(tensor.dtypes[0], dtype))
            self._add(name, empty)
        self.register_parameter("bias", None)
        if bias:
            self.bias = torch.nn.Parameter(torch.empty(rows, dtype=dtype), requires_grad=False)

    def _add(self, name: str, tensor: torch.Tensor) -> None:
        """Adds a tensor under its name, in a module of its own where the name has two parts."""
        owner, _, last = name.rpartition(".")
        if owner:
            self.add_module(owner, torch.nn.Module())
        self.get_submodule(owner).register_parameter(
            last, torch.nn.Parameter(tensor, requires_grad=False)
        )

    def layer(self) -> VectorLayer:
        tensors = {name: tensor for name, tensor in self.named_parameters() if name != "bias"}
        return VectorLayer(self.codebooks, self.out_features, self.in_features, tensors)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        weights = self.layer().dequantize().to(inputs.dtype)
        return torch.nn.functional.linear(inputs, weights, self.bias)


def stored_config(model: torch.nn.Module) -> JsonObject:
    """`quantization_config` of a model with such layers; empty without one."""
    entries: JsonObject = {
        name: layer_entry(
            layer.codebooks, layer.out_features, layer.in_features, layer.bias is not None
        )
        for name, layer in model.named_modules()
        if isinstance(layer, VectorLinear)
    }
    return {"quant_method": METHOD, "config_for_layers": entries} if entries else {}


def replace_linears(
    model: torch.nn.Module, groups: Mapping[str, QuantGroup], dtype: torch.dtype
) -> None:
    """Puts a layer with codebooks in the place of each linear layer that has a group. `groups`: by
    the name of the module."""
    for name, group in groups.items():
        linear = model.get_submodule(name)
        assert isinstance(linear, torch.nn.Linear), name
        with linear.weight.device:
            vectors = VectorLinear(
                group, linear.out_features, linear.in_features, linear.bias is not None, dtype
            )
        model.set_submodule(name, vectors)
