"""Composes a command's config with Hydra and turns it into its typed object.

Every override is checked first against what exists, so that a wrong name or option is answered
with what is close, not with Hydra's advice to add a plus sign.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from conf import sources
from conf.cache import cache_root
from conf.errors import bad_input, unknown
from conf.explain import check_key, explain, field_type
from conf.schema.load import EngineConfig
from conf.schema.ranges import check_values
from conf.schema.steps import gate_options

VERSION_BASE = "1.3"
FREE_MAPPINGS = ("mix.",)
BESIDE_A_FILE = {"recipe.file", *gate_options()}
# What Hydra raises for a config that cannot be composed; not all are exceptions of its own.
COMPOSING = (
    HydraException,
    OmegaConfBaseException,
    ValueError,
    TypeError,
    AttributeError,
    AssertionError,
    RecursionError,
)
PLAIN = re.compile(r"[\w./:-]+")  # needs no quotes in a list


@dataclass(frozen=True)
class Command:
    """A command: the name of its config file, its options, three examples, and the module that
    is called where that is not the name."""

    name: str
    schema: type[Any]
    examples: tuple[str, str, str]
    module: str = ""
    plain: tuple[tuple[str, str], ...] = ()
    """Options that have the name of a group, as which Hydra would take them, and their fields."""
    purpose: str = ""
    """What the command does; empty where the options' own documentation says it."""

    @property
    def groups(self) -> list[str]:
        return [group for group in sources.GROUPS if group in self.schema.__dataclass_fields__]


def register(command: Command) -> None:
    """Makes the command's options and the recipe folders known to Hydra."""
    sources.register()
    ConfigStore.instance().store(name=f"{command.name}_options", node=command.schema)


def checked(command: Command, words: list[str]) -> list[str]:
    """The overrides for Hydra, after each was held against what exists."""
    words = [_as_list(_as_field(word, command), command) for word in words]
    overrides = OverridesParser.create().parse_overrides(words)
    folders = sources.folders_of(_search_path(overrides))
    for group in command.groups:
        _check_names(group, overrides, sources.choices(group, folders))
    for override in overrides:
        key = override.key_or_group
        if key not in command.groups and not key.startswith("hydra") and not _is_engines_own(key):
            check_key(key, command.schema)
    _check_recipe_file({override.key_or_group for override in overrides})
    words = [_passed_on(word, override) for word, override in zip(words, overrides, strict=True)]
    keys = {override.key_or_group for override in overrides}
    if keys & {"model.path", "model.id"} and "model" not in keys:
        return ["model=custom", *words]
    return words


def _check_recipe_file(keys: set[str]) -> None:
    """A recipe.file is run as it is; an option that would change nothing is no option."""
    if "recipe.file" not in keys:
        return
    for key in sorted(keys - BESIDE_A_FILE):
        if key.startswith("recipe."):
            raise bad_input(
                f"{key}: goes with recipe=NAME; recipe.file is run as it is, so change the file"
            )


def _as_field(word: str, command: Command) -> str:
    for name, field in command.plain:
        if word.startswith(f"{name}="):
            return field + word.removeprefix(name)
    return word


def _as_list(word: str, command: Command) -> str:
    """One name where a list of them is meant is a list of one."""
    key, _, value = word.partition("=")
    hint = str(field_type(key, command.schema))
    if not hint.startswith("list[str]") or not value or value == "null" or value[0] in "[":
        return word
    plain = value[0] in "'\"$" or PLAIN.fullmatch(value)
    return f"{key}=[{value}]" if plain or "'" in value else f"{key}=['{value}']"


def _is_engines_own(key: str) -> bool:
    """Whether `engine.NAME` is no option of ours, but one that goes to the engine as it is."""
    group, _, name = key.partition(".")
    ours = EngineConfig.__dataclass_fields__
    return group == "engine" and bool(name) and name.split(".")[0] not in ours


def _passed_on(word: str, override: Override) -> str:
    """Hydra takes new names in a free mapping only with a plus sign; users need not know."""
    key = override.key_or_group
    if _is_engines_own(key):
        return "++engine.options." + word.lstrip("+").removeprefix("engine.")
    if key.startswith(FREE_MAPPINGS):
        return "++" + word.lstrip("+")
    return word


def _search_path(overrides: list[Override]) -> list[str]:
    for override in overrides:
        if override.key_or_group == "hydra.searchpath":
            entries = override.value()
            return [str(entry) for entry in entries] if isinstance(entries, list) else []
    return []


def _check_names(group: str, overrides: list[Override], known: dict[str, Path]) -> None:
    for override in overrides:
        if override.key_or_group != group:
            continue
        for name in _chosen(override):
            if name not in known:
                raise unknown(f"{group}={name}", name, known)


def _chosen(override: Override) -> list[str]:
    if override.is_delete():
        return []
    if override.is_sweep_override():
        return [str(value).strip("'\"") for value in override.sweep_string_iterator()]
    value = override.value()
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]


def quiet() -> list[str]:
    """Overrides that keep Hydra from writing folders: a run leaves its own record."""
    folder = cache_root() / "hydra"
    return [
        "hydra.output_subdir=null",
        f"hydra.run.dir='{folder}'",
        f"hydra.sweep.dir='{folder}'",
        "hydra.sweep.subdir=.",
        "hydra/job_logging=disabled",
        "hydra/hydra_logging=disabled",
    ]


def compose(command: Command, overrides: list[str]) -> Any:
    """The typed object of a command and its overrides, from inside a program."""
    register(command)
    arguments = checked(command, overrides)
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(sources.CONF), version_base=VERSION_BASE):
        try:
            config = hydra.compose(command.name, arguments, return_hydra_config=True)
        except COMPOSING as error:
            raise bad_input(explain(error)) from error
        HydraConfig.instance().set_config(config)
        with open_dict(config):
            del config["hydra"]
        return to_object(config)


def to_object(config: DictConfig) -> Any:
    """The typed object behind a composed config; a value that makes no sense is bad input."""
    try:
        values = OmegaConf.to_container(config, resolve=True)
        schema = OmegaConf.get_type(config)
        assert schema is not None
        check_values(schema, cast(dict[str, Any], values))
        return OmegaConf.to_object(config)
    except OmegaConfBaseException as error:
        raise bad_input(explain(error)) from error
    except ValueError as error:
        raise bad_input(str(error)) from error
