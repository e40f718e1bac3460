"""Which linear layers of a model a VPTQ config stores in codebooks, and whether it fits them."""

import re
from collections.abc import Mapping

import torch

from conf.formats.quant_args import QuantGroup, QuantizationConfig
from conf.formats.vptq import LayerFields, codebook_fault, read_fields
from quantize.vptq.layer import VectorShape

PATTERN = "re:"
WHERE = "config.json: config_for_layers"


def linear_groups(config: QuantizationConfig, model: torch.nn.Module) -> dict[str, QuantGroup]:
    """The group of each linear layer in codebooks. Later groups are exceptions of earlier ones."""
    linears = _linears(model)
    groups: dict[str, QuantGroup] = {}
    for group in config.groups:
        for target in group.targets:
            if not target.startswith(PATTERN):
                groups |= {target: group} if target in linears else {}
                continue
            expression = re.compile(target.removeprefix(PATTERN))
            groups |= {name: group for name in linears if expression.match(name)}
    return groups


def vector_shapes(config: QuantizationConfig, model: torch.nn.Module) -> dict[str, VectorShape]:
    """The size of each linear layer in codebooks."""
    shapes = {}
    for name, group in linear_groups(config, model).items():
        linear = _linears(model)[name]
        assert group.weights is not None
        assert group.weights.codebooks is not None
        shapes[name] = VectorShape(group.weights.codebooks, linear.out_features, linear.in_features)
    return shapes


def config_faults(
    content: Mapping[str, object], groups: Mapping[str, QuantGroup], model: torch.nn.Module
) -> list[str]:
    """Entries that describe no layer of the model, or one of another size. `groups`: of each linear
    layer in codebooks."""
    fields, linears = read_fields(content), _linears(model)
    if not groups:
        return [f"{WHERE} names no linear layer of the model"]
    faults = []
    for name, layer in fields.config_for_layers.items():
        if name not in linears:
            faults.append(f"{WHERE}.{name} is no linear layer of the model")
        else:
            reasons = _layer_faults(layer, linears[name])
            faults += [f"{WHERE}.{name}: {reason}" for reason in reasons]
    return faults


def _layer_faults(layer: LayerFields, linear: torch.nn.Linear) -> list[str]:
    books, columns = layer.codebooks, linear.in_features
    fault = codebook_fault(books)
    if fault is not None:
        return [fault]
    width = books.group_columns(columns)
    stated = (
        ("in_features", layer.in_features or columns, columns),
        ("out_features", layer.out_features or linear.out_features, linear.out_features),
        ("group_size", layer.group_size if layer.group_size > 0 else width, width),
    )
    faults = [f"{key} is {found}, not {size}" for key, found, size in stated if found != size]
    if width * books.groups + books.outlier_columns != columns:
        faults.append(f"{books.groups} groups do not divide the columns, {columns}")
    return faults


def _linears(model: torch.nn.Module) -> dict[str, torch.nn.Linear]:
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
    }
