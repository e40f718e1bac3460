"""Writes the settings found as a file that `python -m serve config=FILE` takes."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from conf import sources
from conf.errors import writing
from conf.files import strict_yaml
from conf.files.write_whole import write_alone
from conf.models import ORIGINAL, is_hub_id
from conf.schema.kernels import KERNELS_OPTION, KernelsConfig
from conf.schema.load import EngineConfig
from conf.schema.model import ModelConfig
from conf.schema.tune import TuneConfig
from evaluate.tune.display import sentences
from evaluate.tune.search import Outcome
from evaluate.tune.space import text_of

# How the engine was measured, and what is written in its own way.
NOT_SERVED = ("kind", "url", "options", KERNELS_OPTION)
FAMILIES = "families"


def write_settings(
    path: Path,
    config: TuneConfig,
    folder: Path,
    engine: EngineConfig,
    context: int | None,
    outcome: Outcome,
) -> None:
    """Writes what to serve, and how the engine is started. `engine` has the chosen settings;
    `context` is the longest one that they allow, or None."""
    content = _served(config, folder) | {"engine": _engine_options(engine, context)}
    lines = [
        f"{text_of(outcome.chosen)} for {config.scenario_name}, by evaluate.tune",
        *sentences(outcome, context),
    ]
    if config.weights == "random":
        lines.append("measured on random weights; serve needs the checkpoint of this recipe")
    comments = "".join(f"# {' '.join(line.split())}\n" for line in lines)
    if not content["engine"]:
        del content["engine"]
    with writing(path), write_alone(path) as unfinished:
        unfinished.write_text(comments + yaml.safe_dump(content, sort_keys=False))


def _served(config: TuneConfig, folder: Path) -> dict[str, Any]:
    """The options of `serve` that name the checkpoint."""
    name = config.recipe_name or ORIGINAL
    is_original = not config.checkpoint and config.recipe_name == ORIGINAL
    if config.weights == "random" or (is_original and _can_be_named(config.model)):
        return {"model": _model(config), "recipe": name}
    if config.checkpoint and is_hub_id(config.checkpoint):
        return {"checkpoint": config.checkpoint}
    return {"checkpoint": str(folder.resolve())}


def _can_be_named(model: ModelConfig) -> bool:
    """Whether a name, a folder or a hub id says all of the model: no field of a listed one was
    changed."""
    listed = sources.choices("model", sources.folders_of([])).get(str(model.name))
    if listed is None:
        return not model.trust_remote_code
    content = strict_yaml.read(listed).content or {}
    defaults = ModelConfig(name=model.name)
    return all(
        getattr(model, name) == content.get(name, getattr(defaults, name))
        for name in ("id", "revision", "path", "weights", "seed", "trust_remote_code")
    )


def _model(config: TuneConfig) -> str | dict[str, str]:
    model = config.model
    if model.path:
        return {"path": str(Path(model.path).expanduser().resolve())}
    if model.name in sources.choices("model", sources.folders_of([])):
        return str(model.name)
    return {"id": str(model.id), "revision": model.revision}


def _engine_options(engine: EngineConfig, context: int | None) -> dict[str, Any]:
    """The options that differ from `serve`'s own defaults."""
    given = _changed(engine, EngineConfig(), NOT_SERVED)
    if context is not None:
        given["max_model_len"] = context
    kernels = _changed(engine.kernels, KernelsConfig())
    if kernels:
        families = engine.kernels.families or []
        is_one_word = list(kernels) == [FAMILIES] and len(families) == 1
        given[KERNELS_OPTION] = families[0] if is_one_word else kernels
    return given | engine.options


def _changed(config: Any, defaults: Any, left_out: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields of a dataclass that differ from the defaults."""
    return {
        field.name: getattr(config, field.name)
        for field in fields(config)
        if field.name not in left_out
        and getattr(config, field.name) != getattr(defaults, field.name)
    }
