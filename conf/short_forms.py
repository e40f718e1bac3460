"""Short forms of options that Hydra does not have, written in full before it reads them."""

import re
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from conf.explain import field_type

PLAIN = re.compile(r"[\w./:-]+")  # needs no quotes in a list
HOME_PATH = re.compile(r"(?<=[=\[,])(~[\w./ -]*)(?=[,\]]|$)")
KERNELS = "engine.kernels="  # short for the list of families
Plain = tuple[tuple[str, str], ...]
"""Name and field of each option that is named like a group."""


def in_full(override: str, plain: Plain, schema: type[Any]) -> str:
    """The override as Hydra reads it."""
    return _as_list(_as_field(_with_quoted_homes(override), plain), schema)


def given_text(override: str) -> str | None:
    """The text that an override gives; None for null. Quotes may be left out, though Hydra would
    need them."""
    try:
        (parsed,) = OverridesParser.create().parse_overrides([override])
        if not parsed.is_sweep_override():
            value = OmegaConf.create({"text": parsed.value()})["text"]
            return None if value is None else str(value)
    except (HydraException, OmegaConfBaseException):
        pass
    return override.partition("=")[2].strip("'\"")


def _with_quoted_homes(override: str) -> str:
    """Quotes paths that begin with ~: Hydra's grammar has no such values, and not every shell
    expands them after NAME=."""
    if "'" in override or '"' in override:
        return override
    return HOME_PATH.sub(r"'\1'", override)


def _as_field(override: str, plain: Plain) -> str:
    if override.startswith(KERNELS):
        return _as_families(override.removeprefix(KERNELS))
    for name, field in plain:
        if override.startswith(f"{name}="):
            return field + override.removeprefix(name)
    return override


def _as_families(value: str) -> str:
    """`engine.kernels=VALUE` as the field that holds the list. A sweep has several values."""
    lists = [value] if value[:1] in ("[", "") or value == "null" else value.split(",")
    lists = [text if text[:1] in ("[", "") or text == "null" else f"[{text}]" for text in lists]
    return f"engine.kernels.families={','.join(lists)}"


def _as_list(override: str, schema: type[Any]) -> str:
    """Wraps a single value in a list where the option is a list."""
    key, _, value = override.partition("=")
    hint = str(field_type(key, schema))
    if not hint.startswith("list[str]") or not value or value == "null" or value[0] in "[":
        return override
    is_plain = value[0] in "'\"$" or PLAIN.fullmatch(value)
    return f"{key}=[{value}]" if is_plain or "'" in value else f"{key}=['{value}']"
