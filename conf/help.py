"""`--help`, written from the config files and the documentation under each option."""

import ast
import dataclasses
import inspect
import os
import textwrap
import typing
from pathlib import Path
from typing import Any

import yaml
from omegaconf import MISSING

from conf import sources
from conf.compose import Command
from conf.explain import without_none
from conf.schema.ranges import HIDDEN, TEXT, range_text

FIELDS = "Options of the groups, with their defaults; a chosen file may set others (see --cfg job)"
WIDTH = 100
COLUMN = 28


def help_text(command: Command) -> str:
    """What the command does, the groups with their choices, the options, three examples."""
    purpose = command.purpose or inspect.getdoc(command.schema) or ""
    defaults = default_choices(command.name)
    folders = sources.folders_of([])
    groups = "[GROUP=NAME] " if command.groups else ""
    sections = [
        f"python -m {command.module or command.name} {groups}[OPTION=VALUE] ...",
        purpose,
        *[_group_choices(group, defaults.get(group, ""), folders) for group in command.groups],
        "\n".join(["Options, with their defaults", *_options(command)]),
        "\n".join(["Examples", *[f"  {example}" for example in command.examples]]),
        "\n".join(
            [
                "More",
                _row(f"-m {_swept(command)}=a,b", "One run for each; continues if one fails."),
                *_launcher_rows(command),
                _row(
                    sources.TEAM_FOLDERS,
                    f"Folders with your own recipes, with '{os.pathsep}' between.",
                ),
                _row("QUANTLINE_DEBUG=1", "Shows the traceback of an error."),
                *(
                    [_row("--list [GROUP]", "Prints the choices of the groups, one line each.")]
                    if command.groups
                    else []
                ),
                _row("--shell-completion", "install=bash: prints a script that bash evaluates."),
                _row("--version", "Prints the version."),
            ]
        ),
        *(["\n".join([FIELDS, *_group_options(command)])] if command.groups else []),
    ]
    return "\n\n".join(sections)


def _swept(command: Command) -> str:
    """An option that a sweep may vary."""
    return "recipe" if "recipe" in command.groups else "OPTION"


def _launcher_rows(command: Command) -> list[str]:
    if command.sweep is None:
        return []
    return [_row("-m ... launcher=slurm", "The jobs on a cluster (docs/scaling.md).")]


def default_choices(name: str) -> dict[str, str]:
    """The choice of each group in a command's config file."""
    entries = yaml.safe_load((sources.CONF / f"{name}.yaml").read_text())["defaults"]
    pairs = [pair for entry in entries if isinstance(entry, dict) for pair in entry.items()]
    return {str(group): str(choice) for group, choice in pairs}


def _group_choices(group: str, default: str, folders: list[Path]) -> str:
    files = sources.choices(group, folders)
    names = sorted(files, key=lambda name: (name != default, name))
    rows = [_row(name, summary(files[name])) for name in names]
    return "\n".join([f"{group}=NAME, by default {default}", *rows])


def _row(name: str, text: str) -> str:
    lines = textwrap.wrap(text, WIDTH - COLUMN, break_on_hyphens=False) or [""]
    if len(name) + 3 > COLUMN:  # the text begins below a long name
        return ("\n" + " " * COLUMN).join([f"  {name}", *lines])
    first_line = f"  {name}".ljust(COLUMN - 1) + " "
    return ("\n" + " " * COLUMN).join([first_line + lines[0], *lines[1:]])


def summary(path: Path) -> str:
    """The first line of a config file, which is a comment that says what it is."""
    with path.open(encoding="utf-8") as file:
        first_line = file.readline()
    return first_line.lstrip("# ").rstrip() if first_line.startswith("#") else ""


def _options(command: Command) -> list[str]:
    rows = []
    names = {field: name for name, field in command.plain}
    for path, field, text in options(command.schema):
        if path.split(".")[0] not in command.groups:
            rows.append(_option_row(names.get(path, path), field, text))
    return rows


def _group_options(command: Command) -> list[str]:
    return [
        _option_row(path, field, text)
        for path, field, text in options(command.schema)
        if path.split(".")[0] in command.groups
    ]


def _option_row(name: str, field: Any, text: str) -> str:
    rule = range_text(field.metadata)
    return _row(f"{name}={_default(field)}", f"{text} ({rule})" if rule else text)


def options(schema: type[Any], prefix: str = "") -> list[tuple[str, Any, str]]:
    """Every option, those of nested dataclasses included: name, field and text."""
    texts, types = documentation(schema), typing.get_type_hints(schema)
    documented_options = []
    for field in dataclasses.fields(schema):
        if field.metadata.get(HIDDEN):
            continue
        option_type, name = without_none(types[field.name]), prefix + field.name
        if typing.get_origin(option_type) is dict and dataclasses.is_dataclass(
            typing.get_args(option_type)[1]
        ):
            option_type, name = typing.get_args(option_type)[1], f"{name}.NAME"
        if dataclasses.is_dataclass(option_type):
            documented_options += options(typing.cast(type, option_type), f"{name}.")
        else:
            text = field.metadata.get(TEXT) or texts.get(field.name, "")
            documented_options.append((name, field, text))
    return documented_options


def _default(field: Any) -> str:
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
        return f"[{','.join(map(str, value))}]" if isinstance(value, list) else ""
    if field.default in (dataclasses.MISSING, MISSING):
        return ""
    if field.default is None:
        return "null"
    return str(field.default).lower() if isinstance(field.default, bool) else str(field.default)


def documentation(schema: type[Any]) -> dict[str, str]:
    """The text under each field of a dataclass, inherited fields included."""
    texts: dict[str, str] = {}
    for ancestor in reversed(schema.__mro__):
        if dataclasses.is_dataclass(ancestor):
            texts |= _own_documentation(ancestor)
    return texts


def _own_documentation(schema: type[Any]) -> dict[str, str]:
    body = ast.parse(textwrap.dedent(inspect.getsource(schema))).body[0]
    assert isinstance(body, ast.ClassDef)
    texts: dict[str, str] = {}
    for statement, following in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
        ):
            texts[statement.target.id] = " ".join(str(following.value.value).split())
    return texts
