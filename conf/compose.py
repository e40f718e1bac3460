"""Composes a command's config with Hydra and turns it into its typed object.

Every override is checked first, so that the message for an unknown name or option suggests a close
one. Hydra would advise to add a plus sign.
"""

import typing
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from conf import sources
from conf.cache import cache_root
from conf.errors import QuantlineError, bad_input, unknown
from conf.explain import check_key, explain, field_type
from conf.files.option_file import FILE, options_in
from conf.launch.hooks import SweepHooks
from conf.schema.load import EngineConfig
from conf.schema.ranges import check_values
from conf.schema.steps import options_with_file
from conf.short_forms import given_text, in_full
from conf.unused.rule import Rule

VERSION_BASE = "1.3"
FREE_MAPPINGS = ("mix",)
ALLOWED_WITH_FILE = {"recipe.file", *options_with_file()}
# Hydra raises these for a config that cannot be composed; not all are its own exceptions.
COMPOSE_ERRORS = (
    HydraException,
    OmegaConfBaseException,
    ValueError,
    TypeError,
    AttributeError,
    AssertionError,
    RecursionError,
    OverflowError,
)


@dataclass(frozen=True)
class Command:
    """A command: the name of its config file, its options, three examples, and its module where
    that has another name."""

    name: str
    schema: type[Any]
    examples: tuple[str, str, str]
    module: str = ""
    plain: tuple[tuple[str, str], ...] = ()
    """Name and field of each option that is named like a group: Hydra would choose the group."""
    purpose: str = ""
    """What the command does; empty where the options' own documentation says it."""
    sweep: SweepHooks | None = None
    """How the jobs of `-m` are split and gathered; None where `launcher` is no option."""
    unused: tuple[Rule, ...] = ()
    """Which options have an effect beside which others."""

    @property
    def groups(self) -> list[str]:
        return [group for group in sources.GROUPS if group in self.schema.__dataclass_fields__]


def register(command: Command) -> None:
    """Makes the command's options and the recipe folders known to Hydra."""
    sources.register()
    ConfigStore.instance().store(name=f"{command.name}_options", node=command.schema)


def checked_overrides(command: Command, overrides: list[str]) -> list[str]:
    """The overrides for Hydra, each checked against the known options and names. Those of
    config=FILE come first."""
    overrides = [*_file_overrides(command, overrides), *overrides]
    overrides = [in_full(text, command.plain, command.schema) for text in overrides]
    parsed = OverridesParser.create().parse_overrides(overrides)
    folders = sources.folders_of(_search_path(parsed))
    for group in command.groups:
        _check_chosen(group, parsed, command.schema)
        _check_names(group, parsed, sources.choices(group, folders))
    for override in parsed:
        key = override.key_or_group
        is_own = key not in command.groups and not key.startswith("hydra")
        if is_own and not _is_engine_option(key, command):
            check_key(key, command.schema)
    _check_recipe_file({override.key_or_group for override in parsed})
    overrides = [
        _for_hydra(text, override, command)
        for text, override in zip(overrides, parsed, strict=True)
    ]
    keys = {override.key_or_group for override in parsed}
    if keys & {"model.path", "model.id"} and "model" not in keys:
        overrides = ["model=custom", *overrides]
    if "traffic.path" in keys and "traffic" not in keys:
        overrides = ["traffic=file", *overrides]
    return overrides


def _file_overrides(command: Command, overrides: list[str]) -> list[str]:
    """The options of config=FILE that the command line does not give itself."""
    given_files = [text for text in overrides if text.lstrip("+").startswith(f"{FILE}=")]
    if not given_files or FILE not in command.schema.__dataclass_fields__:
        return []
    name = given_text(given_files[-1])
    if name is None:
        return []
    path = Path(name).expanduser()
    if not name or not path.is_file():
        raise bad_input(f"{FILE}={name}: there is no such file")
    given = {text.lstrip("+").partition("=")[0] for text in overrides}
    options = options_in(path, command.schema)
    try:
        checked_overrides(command, list(options.values()))
    except (QuantlineError, HydraException) as error:
        message = explain(error) if isinstance(error, HydraException) else str(error)
        raise bad_input(f"{FILE}={path}: {message}") from error
    return [text for name, text in options.items() if name not in given]


def _check_recipe_file(keys: set[str]) -> None:
    """A recipe.file is run as it is; an option that would have no effect is refused."""
    if "recipe.file" not in keys:
        return
    for key in sorted(keys - ALLOWED_WITH_FILE):
        if key.startswith("recipe."):
            raise bad_input(
                f"{key}: works only with recipe=NAME; recipe.file is run as it is, so edit the file"
            )


def _is_engine_option(key: str, command: Command) -> bool:
    """Whether `engine.NAME` is an option of the engine itself, not one of ours."""
    group, _, name = key.partition(".")
    our_options = EngineConfig.__dataclass_fields__
    is_of_engine = group == "engine" and group in command.groups
    return is_of_engine and bool(name) and name.split(".")[0] not in our_options


def _for_hydra(text: str, override: Override, command: Command) -> str:
    """Adds the plus signs that Hydra requires for new names in a free mapping."""
    key = override.key_or_group
    if _is_engine_option(key, command):
        return "++engine.options." + text.lstrip("+").removeprefix("engine.")
    mapping, _, name = key.partition(".")
    if mapping in FREE_MAPPINGS and (name or isinstance(override.value(), dict)):
        return "++" + text.lstrip("+")
    return text


def _search_path(overrides: list[Override]) -> list[str]:
    for override in overrides:
        if override.key_or_group == "hydra.searchpath":
            entries = override.value()
            return [str(entry) for entry in entries] if isinstance(entries, list) else []
    return []


def _check_chosen(group: str, overrides: list[Override], schema: type[Any]) -> None:
    """Raises where a group is removed, or given as a list, whose entries Hydra would merge."""
    takes_several = typing.get_origin(field_type(group, schema)) is dict
    for override in overrides:
        if override.key_or_group != group:
            continue
        if override.is_delete():
            raise bad_input(f"~{group}: it cannot be left out; choose one with {group}=NAME")
        value = override.value()
        if isinstance(value, list) and not takes_several:
            names = ",".join(map(str, value))
            raise bad_input(
                f"{group}=[{names}]: is a list; choose one with {group}=NAME, or sweep over "
                f"several with -m {group}=NAME,NAME"
            )


def _check_names(group: str, overrides: list[Override], known: dict[str, Path]) -> None:
    for override in overrides:
        if override.key_or_group != group:
            continue
        for name in _chosen_names(override, known):
            if name not in known:
                raise unknown(f"{group}={name}", name, known)


def _chosen_names(override: Override, known: Iterable[str]) -> list[str]:
    value = override.value()
    if isinstance(value, Glob):
        return value.filter(list(known)) or [str(override.input_line).partition("=")[2]]
    if override.is_sweep_override():
        return [str(value).strip("'\"") for value in override.sweep_string_iterator()]
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]


def folder_of_runs() -> Path:
    """The folder that Hydra makes for every run. It stays empty."""
    return cache_root() / "hydra"


def quiet_overrides() -> list[str]:
    """Overrides that keep Hydra from writing folders: a run writes its own record."""
    folder = folder_of_runs()
    return [
        "hydra.output_subdir=null",
        f"hydra.run.dir='{folder}'",
        f"hydra.sweep.dir='{folder}'",
        "hydra.sweep.subdir=.",
        "hydra/job_logging=disabled",
        "hydra/hydra_logging=disabled",
    ]


def compose(command: Command, overrides: list[str]) -> Any:
    """The typed object of a command and its overrides, for use inside a program."""
    register(command)
    arguments = checked_overrides(command, overrides)
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(sources.CONF), version_base=VERSION_BASE):
        try:
            config = hydra.compose(command.name, arguments, return_hydra_config=True)
        except COMPOSE_ERRORS as error:
            raise bad_input(explain(error)) from error
        HydraConfig.instance().set_config(config)
        with open_dict(config):
            del config["hydra"]
        return to_object(config)


def to_object(config: DictConfig) -> Any:
    """The typed object of a composed config; an invalid value is bad input."""
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
