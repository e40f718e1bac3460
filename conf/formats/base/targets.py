"""Which group of a quantization config a module belongs to, by the module's name alone."""

import re

from conf.formats.quant_args import QuantGroup, QuantizationConfig

REGEX = "re:"
LINEAR = "Linear"
"""The class of every linear layer, as targets name it."""


def group_of(config: QuantizationConfig, module: str) -> QuantGroup | None:
    """The group of a module with quantized weights; None where the targets do not tell. As vLLM
    looks it up: a name comes before the class, whatever their order. A group without targets is
    that of another tool's config, and has all layers."""
    groups = [group for group in config.groups if group.weights is not None]
    by_name = (group for group in groups if any(_names(target, module) for target in group.targets))
    by_class = (group for group in groups if not group.targets or LINEAR in group.targets)
    return next(by_name, None) or next(by_class, None)


def _names(target: str, module: str) -> bool:
    if target.startswith(REGEX):
        return re.match(target.removeprefix(REGEX), module) is not None
    return target == module
