"""When an option has an effect, and what happens where the user gave one that has none."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from conf.errors import bad_input
from conf.terminal import say

ENGINE_OPTIONS, KERNEL_FAMILIES = "engine.options.", "engine.kernels.families"


@dataclass(frozen=True)
class Rule:
    """Options that have an effect only beside certain others."""

    options: tuple[str, ...]
    """Their names. A name covers the options below it, too: `traffic` and `traffic.rate`. A star
    stands for any name: `scenario.*.requests`."""
    has_effect: Callable[[Any], bool]
    """Whether they have one, by the typed options of the command."""
    works_with: str
    """What they need, as it ends the sentence `NAME works only with ...`."""
    is_mistake: bool = True
    """Whether the result would lack what the option asks for: an error. Without, the result is the
    same, and one line says so."""

    def covers(self, key: str) -> bool:
        return any(fnmatchcase(key, name) or key.startswith(f"{name}.") for name in self.options)


@dataclass(frozen=True)
class UnusedOptions:
    """Options that the user gave and that have no effect, for one reason."""

    keys: tuple[str, ...]
    works_with: str
    is_mistake: bool

    @property
    def error(self) -> str:
        return f"{', '.join(self.keys)}: works only with {self.works_with}"

    @property
    def warning(self) -> str:
        verb = "has" if len(self.keys) == 1 else "have"
        return f"{', '.join(self.keys)} {verb} no effect: works only with {self.works_with}"


def unused_options(
    rules: Iterable[Rule], config: Any, overrides: Iterable[str]
) -> list[UnusedOptions]:
    """The given options without effect. Each is named once, by the first rule that it breaks. A
    value that equals the default asks for nothing."""
    keys = [key for key in dict.fromkeys(map(given_key, overrides)) if not is_default(config, key)]
    unused = []
    for rule in rules:
        covered = [key for key in keys if rule.covers(key)]
        if covered and not rule.has_effect(config):
            keys = [key for key in keys if key not in covered]
            names = tuple(map(_as_typed, covered))
            unused.append(UnusedOptions(names, rule.works_with, rule.is_mistake))
    return unused


def unused_in_all(jobs: Sequence[list[UnusedOptions]]) -> list[UnusedOptions]:
    """What has no effect in any job of a sweep: an option may be for some of the jobs."""
    unused = []
    for options in jobs[0]:
        keys = [key for key in options.keys if all(_has(key, others) for others in jobs[1:])]
        if keys:
            unused.append(replace(options, keys=tuple(keys)))
    return unused


def _has(key: str, unused: list[UnusedOptions]) -> bool:
    return any(key in options.keys for options in unused)


def check_unused(unused: Iterable[UnusedOptions]) -> None:
    """Raises for options that can only be a mistake. Prints a line for each other reason."""
    unused = list(unused)
    for options in unused:
        if options.is_mistake:
            raise bad_input(options.error)
    for options in unused:
        say(options.warning)


def given_key(override: str) -> str:
    """The name of the option that an override gives."""
    return override.lstrip("+~").partition("=")[0].strip()


def is_default(config: Any, key: str) -> bool:
    """Whether the option has the value that it has by itself."""
    holder: Any = None
    value, name = config, ""
    for name in key.split("."):
        holder = value
        value = holder.get(name) if isinstance(holder, dict) else getattr(holder, name, None)
    if is_dataclass(value) and not isinstance(value, type):
        return _is_untouched(value)
    if not is_dataclass(holder):
        return value is None
    for field in fields(holder):
        if field.name == name and field.default_factory is not MISSING:
            return bool(value == field.default_factory())
        if field.name == name:
            return bool(value == field.default)
    return False


def _is_untouched(part: Any) -> bool:
    """Whether a group has its defaults alone. A group that needs a value has no defaults."""
    try:
        return bool(part == type(part)())
    except (TypeError, ValueError):
        return False


def _as_typed(key: str) -> str:
    """The name as users type it, not as Hydra gets it."""
    if key == KERNEL_FAMILIES:
        return "engine.kernels"
    return f"engine.{key.removeprefix(ENGINE_OPTIONS)}" if key.startswith(ENGINE_OPTIONS) else key
