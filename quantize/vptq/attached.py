"""A linear layer that keeps, beside its weight, the tensors that it will be stored as."""

from collections.abc import Mapping

import torch
from compressed_tensors.offload import get_offloaded_device, update_offload_parameter

from conf.formats.base.tensors import StoredTensor
from conf.formats.quant_args import QuantGroup
from conf.formats.vptq import FORMAT
from quantize.vptq.layer import VectorShape
from quantize.vptq.linear import TYPES, VectorLinear

PREFIX = "vptq_"
GROUP = "vptq_group"


def attach(linear: torch.nn.Linear, group: QuantGroup, dtype: torch.dtype) -> None:
    """Adds empty tensors of the layer's sizes."""
    setattr(linear, GROUP, group)
    device = get_offloaded_device(linear)
    for suffix, tensor in _expected(linear).items():
        empty = torch.zeros(
            tensor.shapes[0], dtype=TYPES.get(tensor.dtypes[0], dtype), device=device
        )
        parameter = torch.nn.Parameter(empty, requires_grad=False)
        linear.register_parameter(_attached_name(suffix), parameter)


def is_attached(module: torch.nn.Module) -> bool:
    """Whether the module will be stored in codebooks."""
    return hasattr(module, GROUP)


def fill(linear: torch.nn.Linear, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Takes over the tensors, and the weight that they stand for; returns it in float32."""
    weight = _shape(linear).layer(tensors).dequantize()
    for suffix, tensor in tensors.items():
        update_offload_parameter(linear, _attached_name(suffix), tensor)
    update_offload_parameter(linear, "weight", weight.to(linear.weight.dtype))
    return weight


def to_stored(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Replaces every such layer by the layer as it is stored."""
    layers = {name: module for name, module in model.named_modules() if is_attached(module)}
    for name, linear in layers.items():
        assert isinstance(linear, torch.nn.Linear)
        shape, bias = _shape(linear), linear.bias
        group: QuantGroup = getattr(linear, GROUP)
        with torch.device("meta"):
            stored = VectorLinear(group, shape.rows, shape.columns, bias is not None, dtype)
        tensors = {
            suffix: getattr(linear, _attached_name(suffix)).data for suffix in _expected(linear)
        }
        if bias is not None:
            tensors["bias"] = bias.data.to(dtype)
        stored.load_state_dict(tensors, assign=True)
        model.set_submodule(name, stored)


def _shape(linear: torch.nn.Linear) -> VectorShape:
    group: QuantGroup = getattr(linear, GROUP)
    assert group.weights is not None
    assert group.weights.codebooks is not None
    return VectorShape(group.weights.codebooks, linear.out_features, linear.in_features)


def _expected(linear: torch.nn.Linear) -> dict[str, StoredTensor]:
    group: QuantGroup = getattr(linear, GROUP)
    return FORMAT.tensors(group, linear.out_features, linear.in_features)


def _attached_name(suffix: str) -> str:
    """Names of parameters have no dots."""
    return PREFIX + suffix.replace(".", "_")
