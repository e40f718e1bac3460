"""What an engine was asked for, in vLLM's `additional_config`: {"quantline": {"kernels": ...}}.

vLLM hashes additional_config into the key of its cache of compiled graphs. So our kernels run only
in an engine whose config has our entry, and no graph is shared with an engine without it. The entry
of a loaded engine has all of our families' names, the version of our kernels, and a hash of what
each layer runs: graphs are traced for that.
"""

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from conf.errors import bad_input, nearest
from conf.schema.kernels import (
    AUTO,
    AUTOMATIC,
    DEFAULT,
    FAMILIES,
    KERNELS_OPTION,
    VLLM,
    KernelsConfig,
)
from conf.schema.load import EngineOptions

VERSION = 10
"""Raised whenever kernels compute or are called differently: graphs and rows do not mix then."""
ENTRY, OPTION = "quantline", "additional_config"
KERNELS = KERNELS_OPTION
SECOND_LAYOUT, VERSION_KEY, LAYERS = "second_layout", "version", "layers"


@dataclass(frozen=True)
class Settings:
    """The kernels of ours that an engine may use."""

    families: tuple[str, ...] = AUTOMATIC
    """Empty where vLLM's own kernels run."""
    second_layout: bool | None = None
    """None where the engine decides by its memory when it loads."""

    @staticmethod
    def of(config: KernelsConfig) -> "Settings":
        return Settings(config.chosen, config.second_layout)

    @property
    def entry(self) -> dict[str, Any]:
        """The entry of additional_config."""
        kernels = list(self.families) if self.families else VLLM
        return {KERNELS: kernels, SECOND_LAYOUT: self.second_layout, VERSION_KEY: VERSION}


def read_settings(additional_config: Mapping[str, Any]) -> Settings:
    """The settings of an additional_config; without an entry of ours, the default. Raises
    ValueError for an invalid entry."""
    entry = additional_config.get(ENTRY, {})
    if not isinstance(entry, Mapping):
        raise ValueError(f'{ENTRY}={entry!r}: must be an object, such as {{"{KERNELS}": "{AUTO}"}}')
    known = (KERNELS, SECOND_LAYOUT, VERSION_KEY, LAYERS)
    for name in entry:
        if name not in known:
            raise ValueError(f"{ENTRY}: there is no option {name!r}.{nearest(str(name), known)}")
    second_layout = entry.get(SECOND_LAYOUT)
    if not isinstance(second_layout, bool | None):
        raise ValueError(f"{ENTRY}.{SECOND_LAYOUT}={second_layout!r}: is neither true nor false")
    return Settings.of(KernelsConfig(_families(entry.get(KERNELS, DEFAULT)), second_layout))


def _families(kernels: object) -> list[str]:
    names = kernels if isinstance(kernels, list) else [kernels]
    known = (AUTO, VLLM, *FAMILIES)
    for name in names:
        if name not in known:
            raise ValueError(
                f"{ENTRY}.{KERNELS}={name}: choose one of {', '.join(known)}."
                f"{nearest(str(name), known)}"
            )
    return [str(name) for name in names]


def with_kernels(options: EngineOptions, kernels: KernelsConfig) -> EngineOptions:
    """vLLM's options with our entry beside the user's own entries of additional_config. The plugin
    takes it out again where it says `vllm`."""
    entries = options.get(OPTION) or {}
    if not isinstance(entries, Mapping):
        raise bad_input(f"engine.{OPTION}={entries}: must be a mapping")
    return options | {OPTION: {**entries, ENTRY: Settings.of(kernels).entry}}


def check_not_given(options: EngineOptions) -> None:
    """Raises where a user writes our entry by hand."""
    entries = options.get(OPTION)
    if isinstance(entries, Mapping) and ENTRY in entries:
        raise bad_input(f"engine.{OPTION}.{ENTRY}: give engine.kernels= instead")


def recorded(options: EngineOptions) -> EngineOptions:
    """vLLM's options as a row records them: our entry becomes the options `kernels` and
    `second_layout`. Both are missing for vLLM's own kernels, as in rows from before our kernels."""
    entries = dict(options.get(OPTION) or {})
    if ENTRY not in entries:
        return options
    settings = read_settings(entries)
    del entries[ENTRY]
    others = {name: value for name, value in options.items() if name != OPTION}
    others |= {OPTION: entries} if entries else {}
    if not settings.families:
        return others
    is_auto = settings.families == AUTOMATIC
    others[KERNELS] = AUTO if is_auto else list(settings.families)
    chosen = settings.second_layout
    return others if chosen is None else others | {SECOND_LAYOUT: chosen}


def of_recorded(options: EngineOptions) -> KernelsConfig:
    """The kernels of a row's options; a row without the option ran on vLLM's own."""
    kernels = options.get(KERNELS, VLLM)
    second_layout = options.get(SECOND_LAYOUT)
    chosen = second_layout if isinstance(second_layout, bool) else None
    return KernelsConfig(_families(kernels), chosen)


def current_settings() -> Settings:
    """The settings of the engine that this process loads; none of ours where there is no engine."""
    return settings_of(_current_config())


def settings_of(config: object) -> Settings:
    """The settings of a finished engine config; none of ours where it has no entry, or one that
    cannot be read."""
    entries = _entries_of(config)
    if ENTRY not in entries:
        return Settings(families=())
    try:
        return read_settings(entries)
    except ValueError:
        return Settings(families=())


def add_to_graph_key(fact: str) -> None:
    """Makes a fact of a layer part of the key of this engine's compiled graphs. Graphs are compiled
    after all layers are loaded. The order of layers counts, too."""
    entries = _current_entries()
    entry = entries.get(ENTRY)
    if isinstance(entry, dict):
        before = entry.get(LAYERS, "")
        entry[LAYERS] = hashlib.sha256(f"{before}\n{fact}".encode()).hexdigest()


def decide_second_layout(keeps: bool) -> None:
    """Settles it for all further layers of the engine that this process loads."""
    entry = _current_entries().get(ENTRY)
    if isinstance(entry, dict):
        entry[SECOND_LAYOUT] = keeps


def _current_entries() -> dict[str, Any]:
    return _entries_of(_current_config())


def _current_config() -> object:
    module = sys.modules.get("vllm.config")  # a process that did not import it has no engine
    return None if module is None else module.get_current_vllm_config_or_none()


def _entries_of(config: object) -> dict[str, Any]:
    entries = getattr(config, OPTION, None)
    return entries if isinstance(entries, dict) else {}
