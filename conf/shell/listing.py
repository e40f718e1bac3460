"""`--list [GROUP ...]`: the choices of a command's groups, one line each."""

from conf import sources
from conf.compose import Command
from conf.errors import bad_input, unknown
from conf.escaping import escaped
from conf.help import default_choices, summary

FLAG = "--list"


def listing(command: Command, groups: list[str]) -> str:
    """The choices of these groups, or of all groups, with their descriptions."""
    if not command.groups:
        raise bad_input(f"{FLAG}: this command has no groups; --help shows its options")
    for group in groups:
        if group not in command.groups:
            raise unknown(FLAG, group, command.groups)
    return "\n\n".join(_group(command, group) for group in groups or command.groups)


def groups_after_flag(arguments: list[str]) -> list[str]:
    """The words between --list and the next flag."""
    groups = []
    for word in arguments[arguments.index(FLAG) + 1 :]:
        if word.startswith("-"):
            break
        groups.append(word)
    return groups


def _group(command: Command, group: str) -> str:
    default = default_choices(command.name).get(group, "")
    files = sources.choices(group, sources.folders_of([]))
    names = sorted(files, key=lambda name: (name != default, name))
    width = max(len(escaped(name)) for name in names)
    rows = [f"  {escaped(name).ljust(width)}  {summary(files[name])}".rstrip() for name in names]
    return "\n".join([f"{group}=NAME, by default {default}", *rows])
