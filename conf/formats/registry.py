"""Finds the stored formats: the modules of this package that hold a `FORMAT`."""

import importlib
import pkgutil
from functools import cache

import conf.formats
from conf.formats.base.stored_format import StoredFormat
from conf.formats.quant_args import QuantArgs, QuantGroup, QuantizationConfig


def formats() -> list[StoredFormat]:
    """Every stored format, by name."""
    return _formats(tuple(conf.formats.__path__))


@cache
def _formats(folders: tuple[str, ...]) -> list[StoredFormat]:
    names = sorted(module.name for module in pkgutil.iter_modules(folders))
    modules = [importlib.import_module(f"{conf.formats.__name__}.{name}") for name in names]
    return [module.FORMAT for module in modules if hasattr(module, "FORMAT")]


def format_of(group: QuantGroup) -> StoredFormat | None:
    """The format of a group: by its spelling where its number types fit, otherwise by its number
    types; None where none is known."""
    if group.weights is None:
        return None
    by_spelling = (
        stored for stored in formats() if group.format in stored.spellings and stored.fits(group)
    )
    return next(by_spelling, None) or next(iter(covering(group.weights, group.activations)), None)


def covering(weights: QuantArgs | None, activations: QuantArgs | None) -> list[StoredFormat]:
    """The formats for these number types."""
    return [stored for stored in formats() if stored.covers(weights, activations)]


def format_of_config(config: QuantizationConfig | None) -> StoredFormat | None:
    """The format of most layers: that of the whole config, or of its first group."""
    by_config = next((stored for stored in formats() if stored.is_whole_config(config)), None)
    if by_config is not None or config is None or not config.groups:
        return by_config
    return format_of(config.groups[0])


def format_of_method(method: str | None) -> StoredFormat | None:
    """The format that another tool's quant_method stores."""
    return next((stored for stored in formats() if method in stored.methods), None)


def verified_methods() -> set[str]:
    """Every quant_method of other tools whose checkpoints quantize can verify."""
    return {method for stored in formats() for method in stored.verified_methods}


def spellings() -> list[str]:
    """Every `format` that a compressed-tensors config may have."""
    return sorted({spelling for stored in formats() for spelling in stored.spellings})


def packed_parts() -> set[str]:
    """Tensors that hold several weights in an element."""
    return {part for stored in formats() for part in stored.packed_parts}


def other_parts() -> tuple[str, ...]:
    """Endings of tensors that hold no weights."""
    return tuple(sorted({part for stored in formats() for part in stored.other_parts}))


def marks() -> tuple[str, ...]:
    """Tensors that only a quantized layer has."""
    return tuple(sorted({part for stored in formats() for part in stored.marks}))
