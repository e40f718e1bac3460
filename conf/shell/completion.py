"""`--shell-completion install=bash|query=bash`: completes groups, choices, options and paths.

Hydra's own completion knows scripts, but neither `python -m MODULE` nor `quantline COMMAND`.
"""

import os
import sys
import typing
from pathlib import Path

from conf import sources
from conf.compose import Command
from conf.entry import COMMANDS, show
from conf.errors import QuantlineError, bad_input, unknown
from conf.escaping import CONTROL, escaped
from conf.explain import without_none
from conf.help import options
from conf.schema.ranges import CHOICES
from conf.shell.listing import FLAG as LIST

FLAGS = ("--shell-completion", "-sc")
INSTALL, QUERY = "install", "query"
SHELLS = ("bash",)
LINE = "COMP_LINE"  # the line up to the cursor, as bash passes it
SCRIPT = Path(__file__).with_name("completion.bash")
COMMAND_FLAGS = ("--cfg", "--help", LIST, "--multirun", "--version")


def answer(arguments: list[str], command: Command | None) -> str:
    """The script to evaluate, or the completions of the line in COMP_LINE, one a line.
    `command`: None before a command was chosen, for `quantline` alone."""
    words = [word for word in arguments if word not in FLAGS]
    action, _, shell = words[0].partition("=") if len(words) == 1 else ("", "", "")
    if action not in (INSTALL, QUERY):
        raise bad_input(f"{FLAGS[0]}: write {INSTALL}=bash")
    if shell not in SHELLS:
        raise unknown(f"{FLAGS[0]} {action}={shell}", shell, SHELLS)
    if action == INSTALL:
        return SCRIPT.read_text(encoding="utf-8").rstrip()
    line = os.environ.get(LINE, "")
    word = "" if line[-1:].isspace() else (line.split() or [""])[-1]
    found = _commands(word) if command is None else completions(command, word)
    return "\n".join(entry for entry in found if not CONTROL.search(entry))


def answer_alone(arguments: list[str]) -> int:
    """Prints the answer for `quantline` without a command, and returns the exit code."""
    try:
        show(answer(arguments, None))
    except QuantlineError as error:
        print(escaped(f"error: {error}"), file=sys.stderr)
        return error.exit_code
    return 0


def _commands(word: str) -> list[str]:
    return sorted(name for name, _, _ in COMMANDS if name.startswith(word))


def completions(command: Command, word: str) -> list[str]:
    """The words that begin with this one, sorted."""
    if word.startswith("-"):
        return [flag for flag in COMMAND_FLAGS if flag.startswith(word)]
    name, equals, value = word.partition("=")
    if equals:
        return [f"{name}={ending}" for ending in _values(command, name, value)]
    shown_names = {field: option for option, field in command.plain}
    names = {f"{group}=" for group in command.groups}
    names |= {
        _up_to_next_dot(f"{shown_names.get(path, path)}=", word)
        for path, _, _ in options(command.schema)
    }
    return sorted(name for name in names if name.startswith(word))


def _up_to_next_dot(option: str, word: str) -> str:
    """An option has many parts: one is completed at a time."""
    dot = option.find(".", len(word))
    return option[: dot + 1] if dot >= 0 else option


def _values(command: Command, name: str, value: str) -> list[str]:
    """The values of an option that begin with this text; of a list, its last entry is completed."""
    if name in (*command.groups, *dict(command.plain)):
        return _entries(value, list(sources.choices(name, sources.folders_of([]))))
    for path, field, _ in options(command.schema):
        if path == name:
            if CHOICES in field.metadata:
                return _entries(value, field.metadata[CHOICES])
            if isinstance(field.default, bool):
                return _entries(value, ["false", "true"])
            return _paths(value) if _is_text(field.type) else []
    return []


def _entries(value: str, known: typing.Sequence[str]) -> list[str]:
    start = max(value.rfind(","), value.rfind("[")) + 1
    return [value[:start] + name for name in sorted(known) if name.startswith(value[start:])]


def _is_text(hint: object) -> bool:
    return without_none(hint) in (str, list[str])


def _paths(value: str) -> list[str]:
    """Files and folders that begin so; a folder ends with a slash."""
    start = max(value.rfind(","), value.rfind("[")) + 1
    folder, _, prefix = value[start:].rpartition("/")
    shown = f"{folder}/" if "/" in value[start:] else ""
    try:
        entries = sorted(Path(shown or ".").expanduser().iterdir())
    except OSError:
        return []
    return [
        f"{value[:start]}{shown}{entry.name}{'/' if entry.is_dir() else ''}"
        for entry in entries
        if entry.name.startswith(prefix) and (prefix or not entry.name.startswith("."))
    ]
