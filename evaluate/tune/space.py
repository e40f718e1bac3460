"""The space of a search: the settings that apply here, and engines with some of them changed."""

import copy
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from conf.errors import bad_input, unknown
from conf.schema.kernels import KERNELS_OPTION, VLLM
from conf.schema.load import EngineConfig, EngineOptions, ScenarioConfig
from evaluate.tune.settings import NAMES, TABLE, Limit, Need, Setting

Assignment = tuple[tuple[str, str], ...]
"""The settings that differ from their defaults, and the labels of their values, in table order."""
DEFAULT: Assignment = ()
DEFAULT_LABEL = "default"
SHORT_CONTEXT = "limits max_model_len to the workload's length; name it in settings= to search it"


@dataclass(frozen=True)
class Situation:
    """The facts that decide which settings apply."""

    met: frozenset[Need]
    sizes: Mapping[Limit, int | None] = field(default_factory=dict)
    """The workload's sizes; None where arrivals decide."""
    excluded: Mapping[str, str] = field(default_factory=dict)
    """Settings that cannot be searched, with the reason."""


def workload_sizes(scenario: ScenarioConfig) -> dict[Limit, int | None]:
    """Requests and prompt tokens that can be in the engine at once."""
    at_once = scenario.batch or scenario.concurrency
    tokens = at_once * scenario.input_tokens if at_once and scenario.input_tokens else None
    return {Limit.REQUESTS: at_once, Limit.STEP_TOKENS: tokens}


def excluded_settings(engine: EngineConfig, known: Collection[str]) -> dict[str, str]:
    """The settings that the user has fixed, and those that this engine does not have. `known` are
    the engine's options."""
    reasons = {}
    for setting in TABLE:
        is_kernels = setting.name == KERNELS_OPTION
        if _is_fixed(setting, engine):
            reasons[setting.name] = "is fixed by the command line"
        elif not is_kernels and setting.place[0] not in known:
            reasons[setting.name] = "is no option of this version of vLLM"
    for setting in TABLE:
        replaced = next((other for other in TABLE if other.name == setting.replaces), None)
        if replaced is None:
            continue
        if _is_fixed(setting, engine):
            reasons.setdefault(replaced.name, f"is not searched beside engine.{setting.name}")
        elif _is_fixed(replaced, engine) and engine.kernels.chosen:
            reasons.setdefault(setting.name, f"would leave out engine.{replaced.name}")
    return reasons


def _is_fixed(setting: Setting, engine: EngineConfig) -> bool:
    if setting.name == KERNELS_OPTION:
        return engine.kernels.families is not None
    places = (setting.place, *setting.other_paths)
    return any(_is_given(engine.options, place) for place in places)


def _is_given(options: Mapping[str, Any], place: tuple[str, ...]) -> bool:
    """Whether there is a value. A group of options that is no mapping, as one written as JSON, may
    hold it: beside a value of ours it would be lost."""
    value: Any = options
    for name in place:
        if value is not None and not isinstance(value, Mapping):
            return True
        value = value.get(name) if value is not None else None
    return value is not None


def check_names(names: Collection[str] | None) -> None:
    """Raises where a setting is not in the table."""
    for name in names or ():
        if name not in NAMES:
            raise unknown(f"settings={name}", name, NAMES)


@dataclass(frozen=True)
class Space:
    """The settings of one search."""

    settings: tuple[Setting, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    """The other settings of the table, with the reason."""

    @property
    def size(self) -> int:
        """How many assignments there are. A setting is in one pair at most of those of which one
        replaces the other."""
        pairs = [
            (one, other)
            for one in self.settings
            for other in self.settings
            if one.replaces == other.name
        ]
        paired = {setting.name for pair in pairs for setting in pair}
        alone = [setting for setting in self.settings if setting.name not in paired]
        counts = [len(one.values) + len(other.values) for one, other in pairs]
        return math.prod(count + 1 for count in [*counts, *(len(s.values) for s in alone)])

    def assignment(self, labels: Mapping[str, str]) -> Assignment:
        """The assignment of these labels by name; missing ones are defaults, and so are those that
        have no effect beside another one."""
        changed = [
            setting
            for setting in self.settings
            if labels.get(setting.name, DEFAULT_LABEL) != DEFAULT_LABEL
        ]
        replaced = {setting.replaces for setting in changed}
        return tuple((one.name, labels[one.name]) for one in changed if one.name not in replaced)

    def excludes(self, name: str, other: str) -> bool:
        """Whether one of the two settings replaces the other."""
        return self.setting(name).replaces == other or self.setting(other).replaces == name

    def engine(self, base: EngineConfig, assignment: Assignment) -> EngineConfig:
        """The engine with these settings beside the user's own options."""
        options: EngineOptions = copy.deepcopy(base.options)
        kernels = base.kernels
        for name, label in assignment:
            setting = self.setting(name)
            if name == KERNELS_OPTION:
                families = setting.values[label]
                families = families if isinstance(families, list) else [str(families)]
                kernels = replace(kernels, families=list(families))
            else:
                _set_at(options, setting.place, copy.deepcopy(setting.values[label]))
        return replace(base, options=options, kernels=kernels)

    def assignment_of(self, options: Mapping[str, Any]) -> Assignment:
        """The assignment in the options that a row records. Options that are in no table do not
        count: a row's key tells whether they are the same."""
        labels = {}
        for setting in self.settings:
            value = _value_at(options, setting.place)
            if value is None and setting.name == KERNELS_OPTION:
                value = VLLM  # its rows have no such option
            for label, known in setting.values.items():
                if value is not None and known == value:
                    labels[setting.name] = label
        return self.assignment(labels)

    def setting(self, name: str) -> Setting:
        return next(setting for setting in self.settings if setting.name == name)

    def changes_answers(self, assignment: Assignment) -> bool:
        return any(self.setting(name).changes_answers for name, _ in assignment)

    def fixes_context(self, assignment: Assignment) -> bool:
        return any(self.setting(name).fixes_context for name, _ in assignment)


def text_of(assignment: Assignment) -> str:
    """An assignment as people read it."""
    return ", ".join(f"{name}={label}" for name, label in assignment) or "default settings"


def space_of(names: Collection[str] | None, situation: Situation, judges: bool) -> Space:
    """The settings to search: those that are named, or all that apply. `judges` says whether
    accuracy is measured, so that settings may change answers. Raises where a named setting cannot
    be searched, or nothing is left."""
    check_names(names)
    chosen, left_out = [], {}
    for setting in TABLE:
        reduced, reason = _applicable(setting, situation, judges)
        if setting.fixes_context and names is None:
            reason = reason or SHORT_CONTEXT
        if not reason:
            if names is None or setting.name in names:
                chosen.append(reduced)
            continue
        if names is not None and setting.name in names:
            raise bad_input(f"settings={setting.name}: {reason}")
        left_out[setting.name] = reason
    if not chosen:
        reasons = "; ".join(
            f"{', '.join(name for name, own in left_out.items() if own == reason)}: {reason}"
            for reason in dict.fromkeys(left_out.values())
        )
        raise bad_input(f"settings: there is nothing to search here ({reasons})")
    return Space(tuple(chosen), left_out)


def _applicable(setting: Setting, situation: Situation, judges: bool) -> tuple[Setting, str]:
    """The setting with the values that have an effect, and why there is nothing to search."""
    if setting.name in situation.excluded:
        return setting, situation.excluded[setting.name]
    for need in setting.needs:
        if need not in situation.met:
            return setting, need.value
    if setting.changes_answers and not judges:
        return setting, "changes answers, so it needs accuracy=quick, which judges it"
    unmet = {label: _unmet(setting, label, situation) for label in setting.values}
    if all(unmet.values()):
        reasons = (f"{label} {need.value}" for label, need in unmet.items() if need)
        return setting, f"has no value to try here ({'; '.join(reasons)})"
    kept = {label: value for label, value in setting.values.items() if not unmet[label]}
    setting = replace(setting, values=kept)
    size = situation.sizes.get(setting.limit) if setting.limit else None
    if size is None:
        return setting, ""
    numbers = {label: value for label, value in setting.values.items() if isinstance(value, int)}
    enough = min((value for value in numbers.values() if value >= size), default=math.inf)
    useful = {label: value for label, value in numbers.items() if value <= enough}
    if enough == min(numbers.values()):
        assert setting.limit is not None
        return setting, f"has no effect: the workload has at most {size} {setting.limit.value}"
    return replace(setting, values=useful), ""


def _unmet(setting: Setting, label: str, situation: Situation) -> Need | None:
    """What a value needs and does not have; None where it has an effect. With many requests at
    once, almost no step has a single token."""
    met = situation.met - {Need.ONE_REQUEST}
    if (situation.sizes.get(Limit.REQUESTS) or 1) == 1:
        met |= {Need.ONE_REQUEST}
    return next((need for need in setting.value_needs.get(label, ()) if need not in met), None)


def _value_at(options: Mapping[str, Any], place: tuple[str, ...]) -> Any:
    value: Any = options
    for name in place:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _set_at(options: EngineOptions, place: tuple[str, ...], value: Any) -> None:
    for name in place[:-1]:
        nested = options.get(name)
        options[name] = dict(nested) if isinstance(nested, Mapping) else {}
        options = options[name]
    options[place[-1]] = value
