"""Where config files are found: conf/ for the groups, recipes/ and a team's folders for recipes.

A recipe is a flat file, `FOLDER/NAME.yaml`, chosen with `recipe=NAME`. Hydra wants a group to be a
folder of the same name, so a config source of our own maps one to the other. A team's folder may
also hold groups (`FOLDER/scenario/NAME.yaml`).
"""

import os
from collections import defaultdict
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError, ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin

from conf import ROOT
from conf.errors import bad_input, unknown
from conf.files import strict_yaml
from conf.files.strict_yaml import YamlFile
from conf.launch.options import LauncherConfig
from conf.schema.commands import AccuracyConfig
from conf.schema.config_files import check_named, check_types
from conf.schema.load import EngineConfig, GpuConfig, ScenarioConfig
from conf.schema.model import ModelConfig
from conf.schema.recipe import RecipeConfig
from conf.schema.text import CalibrationConfig
from conf.schema.traffic import TrafficConfig

CONF = ROOT / "conf"
RECIPES = ROOT / "recipes"
GROUPS = (
    *("model", "recipe", "calibration", "scenario", "traffic", "accuracy", "engine", "gpu"),
    "launcher",
)
TEAM_FOLDERS = "QUANTLINE_RECIPES"
SCHEME = "recipes"


SCHEMAS: dict[str, type[Any]] = {
    "model": ModelConfig,
    "recipe": RecipeConfig,
    "calibration": CalibrationConfig,
    "scenario": ScenarioConfig,
    "traffic": TrafficConfig,
    "accuracy": AccuracyConfig,
    "engine": EngineConfig,
    "gpu": GpuConfig,
    "launcher": LauncherConfig,
}
PACKAGE = "# @package"  # a Hydra header: the keys belong to another place


def check_file(path: Path, group: str) -> None:
    """Raises, with file and line, where a file is not a valid config of its group."""
    file = strict_yaml.read(path)
    if file.content is not None and not isinstance(file.content, dict):
        raise file.error((), "must be a mapping of names to values")
    if path.read_text(encoding="utf-8-sig").lstrip().startswith(PACKAGE):
        return
    if group == "scenario":
        check_named(file, SCHEMAS[group])
    else:
        check_types(file, SCHEMAS[group])
    if group == "recipe":
        _check_defaults(file, [path.stem])


def _check_defaults(file: YamlFile, chain: list[str]) -> None:
    """Raises where a recipe builds on one that does not exist, or on itself."""
    entries = (file.content or {}).get("defaults", [])
    if not isinstance(entries, list):
        raise file.error(("defaults",), f"{entries!r}: must be a list of recipes, as [NAME]")
    known = choices("recipe", [*folders_of([]), file.path.parent])
    for number, name in enumerate(entries):
        if name == "_self_":
            continue
        if not isinstance(name, str) or name not in known:
            raise file.error(("defaults", number), str(unknown("recipe", str(name), known)))
        if name in chain:
            cycle = " -> ".join([*chain, name])
            raise file.error(("defaults", number), f"{cycle}: a recipe cannot build on itself")
        _check_defaults(strict_yaml.read(known[name]), [*chain, name])


class RecipeFolder(FileConfigSource):
    """A folder whose flat files are the group `recipe` and whose subfolders are groups."""

    @staticmethod
    def scheme() -> str:
        return SCHEME

    def _local_path(self, config_path: str) -> str | None:
        """The path below the folder; None for a config that the folder does not have."""
        group, _, name = config_path.partition("/")
        if group == "recipe":
            return name
        return config_path if group in GROUPS and (name or self._is_folder(group)) else None

    def _is_folder(self, name: str) -> bool:
        return Path(self.path, name).is_dir()

    def available(self) -> bool:
        return self._is_folder("")

    def is_group(self, config_path: str) -> bool:
        if config_path in ("", "recipe"):
            return self.available()
        local_path = self._local_path(config_path)
        return (
            local_path is not None
            and not config_path.startswith("recipe/")
            and super().is_group(local_path)
        )

    def is_config(self, config_path: str) -> bool:
        local_path = self._local_path(config_path)
        return bool(local_path) and super().is_config(str(local_path))

    def load_config(self, config_path: str) -> ConfigResult:
        local_path = self._local_path(config_path)
        if not local_path:
            raise ConfigLoadError(f"no config '{config_path}' in {self.path}")
        group = config_path.partition("/")[0]
        check_file(Path(self.path, self._normalize_file_name(local_path)), group)
        return super().load_config(local_path)

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        if config_path == "":
            groups = [group for group in GROUPS if self.is_group(group)]
            return [] if results_filter == ObjectType.CONFIG else groups
        if results_filter == ObjectType.GROUP:
            return []
        return names_in(Path(self.path), config_path)


class RecipeSearchPath(SearchPathPlugin):
    """Adds our recipes and the folders of QUANTLINE_RECIPES to what Hydra searches."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in [RECIPES, *team_folders_from_environment()]:
            search_path.append("quantline", f"{SCHEME}://{folder}")


def register() -> None:
    Plugins.instance().register(RecipeFolder)
    Plugins.instance().register(RecipeSearchPath)


def team_folders_from_environment() -> list[Path]:
    entries = os.environ.get(TEAM_FOLDERS, "").split(os.pathsep)
    folders = [Path(entry).expanduser().absolute() for entry in entries if entry]
    for folder in folders:
        if not folder.is_dir():
            raise bad_input(f"{TEAM_FOLDERS}: there is no folder {folder}")
    return folders


def folders_of(search_path: list[str]) -> list[Path]:
    """All folders with recipes: ours, the environment's, and those of hydra.searchpath."""
    prefix = f"{SCHEME}://"
    searched = [
        Path(entry.removeprefix(prefix)) for entry in search_path if entry.startswith(prefix)
    ]
    for folder in searched:
        if not folder.is_dir():
            raise bad_input(f"hydra.searchpath: there is no folder {folder}")
    return [RECIPES, *team_folders_from_environment(), *searched]


def names_in(folder: Path, group: str) -> list[str]:
    """The names that a recipe folder offers for a group."""
    group_folder = folder if group == "recipe" else folder / group
    return sorted(path.stem for path in group_folder.glob("*.yaml"))


def choices(group: str, folders: list[Path]) -> dict[str, Path]:
    """Every name of a group and its file. A name with two files is an error."""
    paths_of: dict[str, list[Path]] = defaultdict(list)
    if group != "recipe":
        for path in sorted((CONF / group).glob("*.yaml")):
            paths_of[path.stem].append(path)
    for folder in dict.fromkeys(folder.resolve() for folder in folders):
        for name in names_in(folder, group):
            paths_of[name].append(
                (folder if group == "recipe" else folder / group) / f"{name}.yaml"
            )
    for name, paths in paths_of.items():
        if len(paths) > 1:
            listed = " and ".join(str(path) for path in paths)
            raise bad_input(f"{group}={name} is in two places: {listed}. Rename one of them.")
    return {name: paths[0] for name, paths in paths_of.items()}
